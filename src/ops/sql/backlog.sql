-- What the metrics say of the queue, one row a kind. It may be asked every second by every process: all that it reads it reads
-- off an index, at most $1 rows at a time, so its cost does not grow with the number of runs.
select k.kind as "kind!: JobKind",
       (select count(*) from (select from boxrun.jobs j
                               where j.kind = k.kind and j.claimable_at <= now() limit $1) waiting) as "due!",
       coalesce((select extract(epoch from now() - min(j.claimable_at)) from boxrun.jobs j
                  where j.kind = k.kind and j.claimable_at <= now()), 0)::float8 as "oldest_due_seconds!",
       ahead.leased as "leased!",
       ahead.scheduled as "scheduled!",
       exists (select from boxrun.kind_pauses p where p.kind = k.kind) as "paused!",
       (select count(*) from (select from boxrun.runs r
                               where r.state in ('admitted', 'dispatched', 'running') and r.deadline_at <= now()
                               limit $1) late) as "runs_past_deadline!",
       coalesce((select extract(epoch from now() - min(d.claimable_at)) from boxrun.webhook_deliveries d
                  where d.state = 'pending' and d.claimable_at <= now()), 0)::float8 as "oldest_due_delivery_seconds!",
       (select count(*) from boxrun.workers w
         where w.heartbeat_at > now() - make_interval(secs => $2)
           and w.drain_requested_at is null and not w.stopping) as "workers_live!"
  from unnest(array['start', 'poll', 'stop', 'cleanup']) as k(kind)
 cross join lateral (
       select count(*) filter (where soon.lease_until > now()) as leased,
              count(*) filter (where soon.lease_until is null or soon.lease_until <= now()) as scheduled
         from (select j.lease_until from boxrun.jobs j
                where j.kind = k.kind and j.claimable_at > now()
                order by j.claimable_at limit $1) soon) ahead
