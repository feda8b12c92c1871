-- name: ended
-- The page after (changed, id).
select id, graph, state, updated_at from ended_1(%(tenant)s, %(before)s, %(graph)s, %(states)s)
 where (updated_at, id) > (%(changed)s, %(id)s) and updated_at >= %(changed)s
 order by updated_at, id limit %(most)s

-- name: count_ended
select count(*) as threads from ended_1(%(tenant)s, %(before)s, %(graph)s, %(states)s)

-- name: long
-- In the same order.
select id, graph, state, updated_at from long_1(%(tenant)s, %(before)s, %(graph)s, %(states)s, %(keep)s)
 where (updated_at, id) > (%(changed)s, %(id)s) and updated_at >= %(changed)s
 order by updated_at, id limit %(most)s

-- name: count_long
select count(*) as threads from long_1(%(tenant)s, %(before)s, %(graph)s, %(states)s, %(keep)s)

-- name: would_keep
select id as thread, kept_because_1(id, %(before)s, %(states)s) as kept from unnest(%(ids)s::text[]) as id

-- name: delete
select thread, kept from delete_threads_1(%(ids)s, %(before)s, %(states)s)

-- name: oldest_kept
select checkpoint_id, metadata -> 'counters_since_delta_snapshot' as since,
       (select min(checkpoint_id) from checkpoints where thread_id = %(thread)s and checkpoint_ns = '') as first
  from checkpoints
 where thread_id = %(thread)s and checkpoint_ns = '' order by checkpoint_id desc offset %(keep)s - 1 limit 1

-- name: take_unused
select take_unused_1(%(thread)s) as taken

-- name: cut
select cut_thread_1(%(thread)s, %(before)s, %(keep)s, %(first_read)s, %(at)s, %(channels)s::text[], %(tag)s,
                    %(blobs)s::bytea[], %(parts)s::text[]) as deleted,
       pg_current_xact_id()::text as transaction

-- name: committed
select coalesce(pg_xact_status(%(transaction)s::text::xid8) = 'committed', false) as committed

-- name: versions
select checkpoint -> 'channel_versions' as versions from checkpoints
 where thread_id = %(thread)s and checkpoint_ns = '' and checkpoint_id = %(at)s

-- name: sweep_documents
select sweep_documents_1(%(seconds)s, %(most)s) as documents
