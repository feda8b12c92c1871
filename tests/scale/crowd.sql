-- A crowd of :threads threads, as a year leaves them: most wait, a fifth have ended, a few are due or driven.
-- Every row that a thread can have is there. Values are sealed bytes that nobody opens.

-- name: threads
insert into threads (id, graph, version, fingerprint, tenant, owner, run_id, epoch, lease_holder, lease_worker,
                     lease_expires_at, due_at, created_at, updated_at)
select 't-' || n, 'crowd', '1', 'f', 'default', 'owner-' || n %% 1000, md5('run' || n)::uuid, 3,
       case when n %% 5000 = 1 then 'holder' end, case when n %% 5000 = 1 then 'worker' end,
       case when n %% 5000 = 1 then standfast.now() + interval '1 hour' end,
       case when n %% 5 = 2 then standfast.now() + n %% 1000 * interval '1 minute' + interval '1 hour'
            when n %% 5000 = 3 then standfast.now() end,
       standfast.now() - n * interval '10 seconds', standfast.now() - n * interval '5 seconds'
  from generate_series(1, %(threads)s) as n

-- name: runs
insert into runs (thread_id, id, number, state, requested_by, vouched, version, fingerprint, client_key, input_digest,
                  input, settings, accepted_at)
select 't-' || n, md5('run' || n)::uuid, 1, case when n %% 5 = 4 then 'succeeded' else 'open' end, 'somebody', true, '1', 'f',
       'key-' || n, 'd', '\x00', '\x00', standfast.now() - n * interval '10 seconds'
  from generate_series(1, %(threads)s) as n

-- name: waits
insert into waits (thread_id, id, run_id, kind, approval_id, node, request, state, interrupt_id, name, match, until,
                   opened_at)
select 't-' || n, md5('wait' || n), md5('run' || n)::uuid,
       case n %% 5 when 0 then 'event' when 1 then 'question' when 2 then 'timer' when 3 then 'approval' else 'event' end,
       case when n %% 5 = 3 then 'apr-' || n end, 'node', '\x00', case when n %% 5 = 4 then 'answered' else 'open' end,
       md5('wait' || n), case when n %% 5 in (0, 4) then 'paid' end, case when n %% 5 in (0, 4) then 'match-' || n end,
       case when n %% 5 = 2 then standfast.now() + n %% 1000 * interval '1 minute' + interval '1 hour' end,
       standfast.now() - n * interval '5 seconds'
  from generate_series(1, %(threads)s) as n

-- name: approvals
insert into approvals (thread_id, id, run_id, operation_id, operation, operation_version, round, state, digest,
                       operation_digest, policy_version, required, group_source, requester_may_decide,
                       edit_needs_another, reason_required, allowed, arguments, request, requested_by, requested_at,
                       expires_at)
select 't-' || n, 'apr-' || n, md5('run' || n)::uuid, 'op-' || n, 'refund', '1', 0,
       case when n %% 5 = 3 then 'open' else 'approved' end, 'd-' || n, 'o-' || n, '1', 1, 'list', true, false, false,
       array['approve', 'reject'], '\x00', '\x00', 'somebody', standfast.now() - n * interval '1 second',
       standfast.now() + interval '7 days'
  from generate_series(1, %(threads)s) as n

-- name: decisions
insert into decisions (thread_id, approval_id, id, decision, principal, vouched, self_approved, digest, granted)
select 't-' || n, 'apr-' || n, md5('decision' || n)::uuid, 'approve', 'ann', true, false, 'd-' || n, 'd-' || n
  from generate_series(1, %(threads)s) as n where n %% 5 <> 3

-- name: operations
insert into operations (thread_id, id, run_id, kind, name, namespace, turn, index, effect, digest, state, arguments)
select 't-' || n, 'op-' || n || case when o > 0 then '-' || o else '' end, md5('run' || n)::uuid, 'tool', 'refund', '', o,
       0, 'idempotent', 'd', case when o = 0 then 'planned' else 'succeeded' end, '\x00'
  from generate_series(1, %(threads)s) as n, generate_series(0, 1) as o

-- name: attempts
insert into attempts (thread_id, operation_id, number, epoch, worker, state, ended_at)
select 't-' || n, 'op-' || n || '-1', 1, 1, 'worker', 'succeeded', standfast.now()
  from generate_series(1, %(threads)s) as n

-- name: events
insert into events (tenant, id, name, match, digest, payload, emitted_by, expires_at)
select 'default', 'event-' || n, 'paid', 'other-' || n, 'd', '\x00', 'somebody', standfast.now() + interval '7 days'
  from generate_series(1, %(threads)s) as n

-- name: run_events
insert into run_events (thread_id, run_id, first, last, epoch, events)
select 't-' || n, md5('run' || n)::uuid, e, e, 1, '\x00'
  from generate_series(1, %(threads)s) as n, generate_series(1, 2) as e

-- name: checkpoints
insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata, sealed)
select 't-' || n, '', '1f000000-0000-6000-8000-00000000000' || c, null, '{"channel_versions": {"state": "1"}}',
       jsonb_build_object('run_id', md5('run' || n), 'parents', '{}'::jsonb), '\x00'
  from generate_series(1, %(threads)s) as n, generate_series(1, 2) as c

-- name: blobs
insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
select 't-' || n, '', 'state', '1', 'sealed', '\x00' from generate_series(1, %(threads)s) as n

-- name: writes
insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)
select 't-' || n, '', '1f000000-0000-6000-8000-000000000002', 'task', 0, 'state', 'sealed', '\x00'
  from generate_series(1, %(threads)s) as n

-- name: outbox
insert into outbox (id, thread_id, run_id, topic, key, payload)
select 'message-' || n, 't-' || n, md5('run' || n)::uuid, 'approval.opened', 't-' || n, '\x00'
  from generate_series(1, %(threads)s) as n

-- name: deliveries
insert into deliveries (seq, channel, key, state, due_at)
select seq, 'hook', key, case when seq %% 1000 = 0 then 'pending' else 'delivered' end, standfast.now() from outbox

-- name: artifacts
insert into artifacts (sha256, size, place, stored, keep_until)
select md5(n::text) || md5((-n)::text), 1, '', true, standfast.now() + interval '1 day'
  from generate_series(1, %(threads)s) as n

-- name: references
insert into artifact_references (thread_id, sha256, label)
select 't-' || n, md5(n::text) || md5((-n)::text), '\x00' from generate_series(1, %(threads)s) as n

-- name: audit
insert into audit (thread_id, seq, entry, hash)
select 't-' || n, 1, '{}', '\x00' from generate_series(1, %(threads)s) as n

-- name: audit_heads
insert into audit_heads (thread_id, seq, hash, anchored_seq)
select 't-' || n, 1, '\x00', 1 from generate_series(1, %(threads)s) as n

-- One thread has been at work for long: t-1, which is driven. All but a few of its rows are history.

-- name: long_checkpoints
insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata, sealed)
select 't-1', case when c %% 2 = 0 then '' else 'operation:' || c end, '1e' || lpad(to_hex(c), 6, '0') || '-0000-6000-8000-000000000000',
       null, '{"channel_versions": {"state": "1"}}',
       jsonb_build_object('run_id', md5('run1'), 'parents', jsonb_build_object('', 'gone')), '\x00'
  from generate_series(1, %(long)s) as c

-- name: long_blobs
insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
select 't-1', '', 'state', 'v' || n, 'sealed', '\x00' from generate_series(1, %(long)s) as n

-- name: long_writes
insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)
select 't-1', '', '1e' || lpad(to_hex(n), 6, '0') || '-0000-6000-8000-000000000000', 'task', 0, 'state', 'sealed', '\x00'
  from generate_series(1, %(long)s) as n

-- name: long_operations
insert into operations (thread_id, id, run_id, kind, name, namespace, turn, index, effect, digest, state, arguments)
select 't-1', 'long-' || n, md5('run1')::uuid, 'tool', 'refund', '', n, 0, 'idempotent', 'd', 'succeeded', '\x00'
  from generate_series(1, %(long)s) as n

-- name: long_attempts
insert into attempts (thread_id, operation_id, number, epoch, worker, state, ended_at)
select 't-1', 'long-' || n, 1, 1, 'worker', 'succeeded', standfast.now() from generate_series(1, %(long)s) as n

-- name: long_waits
insert into waits (thread_id, id, run_id, kind, node, request, state, interrupt_id)
select 't-1', 'long-' || n, md5('run1')::uuid, 'question', 'node', '\x00', 'answered', 'long-' || n
  from generate_series(1, %(long)s) as n

-- name: long_approvals
insert into approvals (thread_id, id, run_id, operation_id, operation, operation_version, round, state, digest,
                       operation_digest, policy_version, required, group_source, requester_may_decide,
                       edit_needs_another, reason_required, allowed, arguments, request, requested_by, requested_at,
                       expires_at)
select 't-1', 'apr-long-' || n, md5('run1')::uuid, 'long-' || n, 'refund', '1', 0, 'approved', 'd-long-' || n, 'o', '1', 1,
       'list', true, false, false, array['approve', 'reject'], '\x00', '\x00', 'somebody',
       standfast.now() - n * interval '1 minute', standfast.now() + interval '7 days'
  from generate_series(1, %(long)s / 4) as n

-- name: long_events
insert into run_events (thread_id, run_id, first, last, epoch, events)
select 't-1', md5('run1')::uuid, e, e, 1, '\x00' from generate_series(3, %(long)s) as e
