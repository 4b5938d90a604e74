-- What a caller was told is durable before it was told, also where the server, the database, the user or the session has
-- synchronous_commit = off: a commit that changes what callers are told, or that claims a dispatch, waits for the disk.
-- Without it a crash of the server could forget a claim that was acted upon, or a run that was admitted. Other values are
-- the operator's choice and stay: `local` and `remote_write` are on this server's disk, `on` and `remote_apply` too.
-- Rows of jobs and workers need none of it: a lost lease is claimed again, and its old holder is fenced off.

create function boxrun.commit_durably() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- Until the end of the transaction; the session's own value comes back by itself.
    perform set_config('synchronous_commit', 'on', true);
    return null;
end
$$;
revoke execute on function boxrun.commit_durably from public;

create trigger commit_durably before insert or update or delete on boxrun.runs
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();
create trigger commit_durably before insert or update or delete on boxrun.conversations
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();
create trigger commit_durably before insert or update or delete on boxrun.boxes
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();
create trigger commit_durably before insert or update or delete on boxrun.kind_pauses
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();
