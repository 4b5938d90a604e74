select r.id
  from boxrun.runs r
 where ($1::uuid is null or r.conversation_id = $1)
   and ($2::text is null or r.box_id = $2)
   and ($3::text is null or r.state = $3)
   and (not $4::boolean or r.state in ('admitted', 'dispatched', 'running'))
   and ($5::text is null or r.idempotency_key = $5)
   and ($6::text is null or exists (select from boxrun.conversations c
        where c.id = r.conversation_id and c.principal_type = $6 and c.principal_id = $7))
   and ($8::timestamptz is null or (r.admitted_at, r.id) < ($8, $9::uuid))
 order by r.admitted_at desc, r.id desc
 limit $10
