-- The fence: no row with this lease, no finish. A delivery that was asked for again while it was in hand is due now, as if
-- it were new. Returns in how many seconds it is due; null: it has ended.
update boxrun.webhook_deliveries d
   set state = case when d.urgent then 'pending' else $3 end,
       ended_at = case when not d.urgent and $3 <> 'pending' then clock_timestamp() end,
       due_at = case when d.urgent then clock_timestamp() else clock_timestamp() + make_interval(secs => $4) end,
       attempts = case when d.urgent then 0 else d.attempts + 1 end,
       attempted_at = clock_timestamp(),
       last_status = $5, last_error_code = $6, last_error = $7,
       urgent = false, lease = null, lease_until = null, leased_by = null
 where d.id = $1 and d.lease = $2
returning case when d.state = 'pending' then extract(epoch from d.due_at - clock_timestamp())::float8 end as due_in
