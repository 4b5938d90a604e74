-- Runs started with psql: rolled back, beside a savepoint, committed, repeated, cancelled.
--
--     psql --quiet --no-align --tuples-only --set conversation=UUID --set box=BOX --file with_psql.sql
--
-- Connects as PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE say. The app's own table is `deployments (note, run_id)`.

\set ON_ERROR_STOP on
\set principal '{"type": "user", "id": "u1"}'

select id from boxrun.attach_box(conversation_id => :'conversation', box_id => :'box',
                                 principal => :'principal') \gset attached_

-- Rolled back, nothing has happened: neither our row nor the run.
begin;
insert into deployments (note) values ('rolled back');
select id from boxrun.start_run(conversation_id => :'conversation', box_id => :'box', principal => :'principal',
                                command => 'make test', idempotency_key => 'rolled-back') \gset rolled_back_
rollback;

-- A refusal behind a savepoint leaves the transaction alive. psql keeps SQLSTATE and message, which is the code.
begin;
insert into deployments (note) values ('committed');
savepoint attempt;
\set ON_ERROR_STOP off
select id from boxrun.start_run(conversation_id => :'conversation', box_id => :'box', principal => :'principal',
                                command => '   ', idempotency_key => 'refused') \gset refused_
\set ON_ERROR_STOP on
\set blank_sqlstate :LAST_ERROR_SQLSTATE
\set blank_code :LAST_ERROR_MESSAGE
rollback to savepoint attempt;
select id from boxrun.start_run(conversation_id => :'conversation', box_id => :'box', principal => :'principal',
                                command => 'make test', idempotency_key => 'deploy-1') \gset run_
update deployments set run_id = :'run_id' where note = 'committed';
commit;

-- The same key, box and command is the same run.
select id from boxrun.start_run(conversation_id => :'conversation', box_id => :'box', principal => :'principal',
                                command => 'make test', idempotency_key => 'deploy-1') \gset repeated_
\set ON_ERROR_STOP off
select id from boxrun.start_run(conversation_id => :'conversation', box_id => :'box', principal => :'principal',
                                command => 'make lint', idempotency_key => 'deploy-2') \gset refused_
\set ON_ERROR_STOP on
\set busy_sqlstate :LAST_ERROR_SQLSTATE
\set busy_code :LAST_ERROR_MESSAGE

select json_agg(id) as ids from boxrun.list_runs(conversation_id => :'conversation') \gset listed_
select next_offset from boxrun.read_output(conversation_id => :'conversation', run_id => :'run_id',
                                           from_offset => 0) \gset output_
select state from boxrun.cancel_run(conversation_id => :'conversation', run_id => :'run_id',
                                    principal => :'principal') \gset ended_

select json_build_object(
    'run', :'run_id',
    'repeated', :'repeated_id',
    'refusals', json_build_array(json_build_array(:'blank_sqlstate', :'blank_code'),
                                 json_build_array(:'busy_sqlstate', :'busy_code')),
    'active', null,
    'listed', :'listed_ids'::json,
    'next_offset', :output_next_offset,
    'ended', :'ended_state');
