-- The run's offsets, and its pieces that reach beyond the offset asked for, in their order. The piece in which the offset
-- lies is the last one that starts at or before it. $3: only pieces that start within so many bytes of it.
select r.last_output_offset, r.output_base_offset, o.start_offset as "start_offset?", o.text as "text?"
  from boxrun.runs r
  left join boxrun.run_output o
    on o.run_id = r.id
   and o.start_offset >= coalesce((select max(p.start_offset) from boxrun.run_output p
                                    where p.run_id = r.id and p.start_offset <= greatest($2::bigint, r.output_base_offset)), 0)
   and o.start_offset + octet_length(o.text) > $2
   and ($3::bigint is null or o.start_offset < greatest($2, r.output_base_offset) + $3)
 where r.id = $1
 order by o.start_offset
