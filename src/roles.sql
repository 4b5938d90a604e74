-- Run by `boxrun migrate --roles`, as often as you like. Roles belong to the whole server, so they are not a migration.
-- None of them can log in; grant them to the users that do:  grant boxrun_worker to my_worker_user;
do $$
declare
    role_name text;
begin
    foreach role_name in array array['boxrun_app', 'boxrun_web', 'boxrun_worker'] loop
        if not exists (select from pg_roles where rolname = role_name) then
            begin
                execute format('create role %I nologin', role_name);
            exception when duplicate_object or unique_violation then
                null;  -- made meanwhile, for another database of this server
            end;
        end if;
    end loop;
end
$$;

-- PostgreSQL lets everybody execute a new function.
revoke execute on all functions in schema boxrun from public;

grant usage on schema boxrun to boxrun_app, boxrun_web, boxrun_worker;

-- The web app calls these functions and touches no table. They run with the rights of the schema's owner.
grant usage on type boxrun.run, boxrun.attached_box, boxrun.output to boxrun_app;
grant execute on function boxrun.start_run, boxrun.attach_box, boxrun.detach_box, boxrun.get_run, boxrun.list_runs,
    boxrun.cancel_run, boxrun.read_output to boxrun_app;

-- The web process admits, reads and cancels for others.
grant select on all tables in schema boxrun to boxrun_web, boxrun_worker;
grant insert on boxrun.conversations, boxrun.boxes, boxrun.runs, boxrun.run_events, boxrun.run_secrets, boxrun.jobs,
    boxrun.api_tokens, boxrun.run_tickets, boxrun.provider, boxrun.webhooks to boxrun_web;
grant update on boxrun.boxes, boxrun.runs, boxrun.jobs, boxrun.api_tokens, boxrun.run_tickets, boxrun.webhooks,
    boxrun.webhook_deliveries to boxrun_web;
grant delete on boxrun.conversations, boxrun.runs, boxrun.jobs, boxrun.run_tickets, boxrun.webhooks to boxrun_web;

-- The worker drives runs; it makes no conversation and attaches no box. Operators pause and drain with the same role.
grant insert, update, delete on boxrun.jobs, boxrun.workers, boxrun.run_output, boxrun.kind_pauses to boxrun_worker;
grant insert on boxrun.run_events, boxrun.provider, boxrun.settings to boxrun_worker;
grant update on boxrun.runs, boxrun.provider, boxrun.settings to boxrun_worker;
-- It delivers what the trigger on boxrun.runs wrote down, removes it after its retention, and disables webhooks that are gone.
grant update on boxrun.webhooks to boxrun_worker;
grant update, delete on boxrun.webhook_deliveries to boxrun_worker;

grant execute on all functions in schema boxrun to boxrun_web, boxrun_worker;
revoke execute on function boxrun.start_run, boxrun.attach_box, boxrun.detach_box, boxrun.cancel_run from boxrun_worker;
