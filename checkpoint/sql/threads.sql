-- name: accept
select *, standfast.now() as accepted_at from accept_run_2(
    %(thread)s, %(tenant)s, %(owner)s, %(graph)s, %(version)s, %(fingerprint)s, %(run)s, %(requested_by)s,
    %(vouched)s, %(verified_by)s, %(model)s, %(collection)s, %(input)s, %(settings)s, %(deadline)s, %(budget)s,
    %(priority)s, %(client_key)s, %(input_digest)s, %(on_busy)s, %(holder)s, %(worker)s, %(seconds)s)

-- name: take_due
select take_due_1(%(thread)s, %(epoch)s) as cancelling

-- name: end
select end_run_1(%(thread)s, %(epoch)s, %(run)s, %(state)s, %(reason)s, %(outcome)s, %(limit)s)

-- name: get
select t.id, t.uuid::text, t.tenant, t.owner, t.graph, t.version, t.fingerprint, t.run_id::text, t.epoch,
       t.lease_worker, t.due_at, t.cancel_requested_at, t.crashes, t.created_at, t.updated_at,
       t.lease_holder is not null and t.lease_expires_at > standfast.now() as leased,
       coalesce(t.lease_expires_at <= standfast.now(), t.due_at <= standfast.now(), false) as due,
       r.number, r.state as run_state, r.reason, r.accepted_at, r.ended_at,
       exists (select 1 from waits w where w.thread_id = t.id and w.state = 'open') as waiting
  from threads t left join runs r on r.thread_id = t.id and r.id = t.run_id
 where t.id = %(thread)s

-- name: by_uuid
select id from threads where uuid = %(uuid)s

-- name: run
select id::text, number, state, reason, requested_by, vouched, model, collection_id, input, settings, outcome,
       deadline, budget, parent_thread_id, accepted_at, ended_at
  from runs where thread_id = %(thread)s and id = %(run)s

-- name: latest
select r.id::text, r.number, r.state, r.reason, r.requested_by, r.vouched, r.model, r.collection_id, r.input, r.settings,
       r.outcome, r.deadline, r.budget, r.parent_thread_id, r.accepted_at, r.ended_at,
       (select coalesce(max(e.last), 0) from run_events e where e.thread_id = r.thread_id and e.run_id = r.id) as last_event
  from threads t join runs r on r.thread_id = t.id and r.id = t.run_id
 where t.id = %(thread)s

-- name: runs
select id::text, number, state, reason, requested_by, vouched, model, collection_id, input, settings, outcome,
       deadline, budget, parent_thread_id, accepted_at, ended_at
  from runs where thread_id = %(thread)s order by number

-- name: cancel
update threads t
   set cancel_requested_at = coalesce(t.cancel_requested_at, standfast.now())
  from (select x.id, x.run_id, x.cancel_requested_at as asked_at
          from threads x join runs r on r.thread_id = x.id and r.id = x.run_id
         where x.id = %(thread)s and r.state in ('queued', 'open', 'needs_attention') for no key update of x) as before
 where t.id = before.id
returning before.run_id::text as run_id, before.asked_at, wake_1(t.id)

-- name: retry
select reopen_run_1(%(thread)s, %(deadline)s, %(budget)s) as verdict

-- name: standing
select state, reason from runs where thread_id = %(thread)s and id = %(run)s
