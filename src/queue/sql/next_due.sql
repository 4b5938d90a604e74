-- Seconds until the next job of a kind that this process ($2) serves ($1) may be claimed; null: none is waiting. Along with it
-- what operators ordered, so that it needs no statement of its own.
select (select extract(epoch from min(next.claimable_at) - clock_timestamp())::float8
          from unnest($1::text[]) as served(kind)
          cross join lateral (select claimable_at from boxrun.jobs j where j.kind = served.kind
                               order by claimable_at limit 1) next) as "seconds",
       array(select kind from boxrun.kind_pauses) as "paused!",
       exists (select from boxrun.workers where id = $2 and drain_requested_at is not null) as "draining!"
