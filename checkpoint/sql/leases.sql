-- name: claim
select epoch, head, crashes, cancel_requested from claim_lease_1(%(thread)s, %(holder)s, %(worker)s, %(seconds)s)

-- name: leased
select lease_worker, lease_expires_at from threads where id = %(thread)s

-- name: blockers
select pg_terminate_backend(pid) from unnest(pg_blocking_pids(%(pid)s)) as pid

-- name: release
select release_lease_1(%(thread)s, %(epoch)s)

-- name: renew
select id, epoch from renew_leases_1(%(threads)s, %(epochs)s, %(seconds)s)

-- name: cancelled
select id from threads where id = any(%(threads)s) and cancel_requested_at is not null
