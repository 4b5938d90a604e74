-- Claims at most $4 deliveries that are due, under one fresh lease, and says what is needed to send them. Of one webhook no
-- more than $5 are in hand: a receiver that hangs holds some slots, and the others go on. A batch is as large as that limit,
-- so it is passed by less than a batch.
with due as materialized (
    select d.id
      from boxrun.webhook_deliveries d
     where d.state = 'pending' and d.claimable_at <= now()
       and (select count(*) from boxrun.webhook_deliveries other
             where other.webhook_id = d.webhook_id and other.lease is not null and other.lease_until > now()) < $5
     order by d.claimable_at limit $4 for update of d skip locked
)
update boxrun.webhook_deliveries d
   set lease = $1, lease_until = clock_timestamp() + make_interval(secs => $2), leased_by = $3, urgent = false
  from due, boxrun.webhooks w
 where d.id = due.id and w.id = d.webhook_id
returning d.id, d.run_id as "run_id: RunId", d.attempts, w.id as webhook_id, w.url, w.key_id, w.nonce, w.sealed,
          w.disabled_at is not null as "disabled!", clock_timestamp() as "claimed_at!"
