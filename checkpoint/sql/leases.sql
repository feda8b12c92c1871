-- name: claim
select epoch, head, crashes, cancel_requested from claim_lease_1(%(thread)s, %(holder)s, %(worker)s, %(seconds)s)

-- name: claim_due
select epoch, head, crashes, cancel_requested from claim_due_1(%(thread)s, %(holder)s, %(worker)s, %(seconds)s)

-- name: claim_next
select id, graph, version, run_id::text, holder, epoch, head, crashes, cancel_requested
  from claim_next_1(%(graphs)s, %(holders)s, %(worker)s, %(seconds)s, %(again)s)

-- name: leased
select lease_worker, lease_expires_at,
       extract(epoch from lease_expires_at - standfast.now())::float8 as seconds_left
from threads where id = %(thread)s

-- name: terminate_blockers
-- Who holds the row, not who waits for it as we do: a queue of claims is as long as its first holder is stalled.
with recursive ahead (pid) as (
    select unnest(pg_blocking_pids(%(pid)s))
    union
    select unnest(pg_blocking_pids(pid)) from ahead where pid <> 0)
select pid from ahead where cardinality(pg_blocking_pids(pid)) = 0 and pg_terminate_backend(pid)

-- name: release
select release_lease_1(%(thread)s, %(epoch)s)

-- name: leave
select park_1(%(thread)s, %(epoch)s, null) as left

-- name: break
with held as (
    select id, lease_worker from threads where id = %(thread)s and lease_holder is not null for update),
broken as (
    update threads t
       set epoch = epoch + 1, crashes = crashes + 1, lease_holder = null, lease_worker = null, lease_expires_at = null,
           due_at = standfast.now(), updated_at = standfast.now()
      from held where t.id = held.id
    returning t.id, held.lease_worker)
select lease_worker as worker, ring_1(id) from broken

-- name: renew
select id, epoch from renew_leases_1(%(threads)s, %(epochs)s, %(seconds)s)

-- name: cancelled
select id from threads where id = any(%(threads)s) and cancel_requested_at is not null
