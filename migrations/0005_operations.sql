-- What an operator orders: kinds of jobs that rest for a while, and workers that shall finish what they have and end.

create table boxrun.kind_pauses (
    kind      text primary key          -- `stop` is not among them: a cancel or a deadline may not wait for anybody
              constraint kind_pauses_kind_may_rest check (kind in ('start', 'poll', 'cleanup')),
    paused_at timestamptz not null default clock_timestamp(),
    paused_by text not null,            -- who, for people
    reason    text not null constraint kind_pauses_reason_length
              check (octet_length(reason) between 1 and 1000 and reason ~ '[^[:space:]]')
);
comment on table boxrun.kind_pauses is 'Kinds of jobs that no worker claims; a row may be deleted: then the kind goes on';

-- Workers read the pauses anew when they hear of it; one that misses it does within seconds.
create function boxrun.notify_orders() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_notify('boxrun_jobs', 'orders');
    return null;
end
$$;

create trigger notify_pause after insert or update or delete on boxrun.kind_pauses
    for each statement execute function boxrun.notify_orders();

alter table boxrun.workers add column drain_requested_at timestamptz;
comment on column boxrun.workers.drain_requested_at is 'The worker claims no more from here on, and ends once it has nothing in hand';

create trigger notify_drain after update of drain_requested_at on boxrun.workers
    for each row when (new.drain_requested_at is distinct from old.drain_requested_at)
    execute function boxrun.notify_orders();

-- A cleanup that a start waits for, and a poll that reads the rest of a run past its deadline or cancel. With a default
-- that is constant, so that no row is written anew.
alter table boxrun.jobs add column despite_pause boolean not null default false;
comment on column boxrun.jobs.despite_pause is 'Claimable also while its kind is paused';
create index jobs_claimable_despite_pause on boxrun.jobs (kind, claimable_at) where despite_pause;
