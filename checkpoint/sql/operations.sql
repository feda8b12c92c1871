-- name: begin
select * from begin_attempt_1(
    %(thread)s, %(epoch)s, %(id)s, %(run)s, %(kind)s, %(name)s, %(namespace)s, %(turn)s, %(index)s, %(effect)s,
    %(digest)s, %(arguments)s, %(worker)s, %(needs_grant)s, %(approval)s, %(granted)s,
    %(policy_version)s, %(required)s, %(source)s, %(members)s, %(timeout)s, %(within)s)

-- name: standing
select s.*, 0::float8 as wait, 0::float8 as elapsed
  from assert_lease_1(%(thread)s, %(epoch)s), standing_1(%(thread)s, %(id)s) s

-- name: finish
select finish_attempt_1(%(thread)s, %(epoch)s, %(id)s, %(attempt)s, %(state)s, %(result)s, %(failure_class)s,
                        %(failure_message)s, %(delay)s, %(retry_after)s) as recorded

-- name: stopped
select stop_attempt_1(%(thread)s, %(epoch)s, %(id)s, %(attempt)s)

-- name: pend
select pend_attempt_1(%(thread)s, %(epoch)s, %(id)s, %(attempt)s, %(handle)s, %(timeout)s)

-- name: look_again
select look_again_1(%(thread)s, %(epoch)s, %(id)s, %(delay)s, %(handle)s, %(timeout)s) as until

-- name: settle
select settle_outcome_1(%(thread)s, %(epoch)s, %(id)s, %(attempt)s, %(state)s, %(result)s, %(failure_class)s,
                        %(failure_message)s, %(answered)s, %(delay)s) as settled

-- name: complete
select verdict, detail from complete_1(%(id)s, %(attempt)s, %(completion)s, %(state)s, %(result)s, %(message)s,
                                       %(sha256)s, %(who)s, %(vouched)s, %(verified_by)s)

-- name: place_of
select thread_id, name from operations where id = %(id)s and inherited_from is null

-- name: list
select id, run_id::text, kind, name, namespace, turn, index, effect, digest, state, arguments, result,
       failure_class, failure_message, attempts, next_attempt_at, created_at, updated_at,
       inherited_from is not null as inherited
  from operations
 where thread_id = %(thread)s and (%(run)s::uuid is null or run_id = %(run)s)
 order by created_at, turn, index, id

-- name: tries
select count(*) filter (where a.state = 'failed') as failures,
       coalesce(extract(epoch from standfast.now() - min(a.started_at)), 0)::float8 as elapsed
  from operations o join attempts a on a.thread_id = o.thread_id and a.operation_id = o.id and a.number > o.forgiven
 where o.thread_id = %(thread)s and o.id = %(id)s

-- name: pending_retries
select id, name, attempts, next_attempt_at, failure_class, failure_message, next_attempt_at <= standfast.now() as due
  from operations
 where thread_id = %(thread)s and run_id = %(run)s and state = 'planned' and next_attempt_at is not null
 order by next_attempt_at, id

-- name: model_calls
select count(*) as calls
  from operations o join attempts a on a.thread_id = o.thread_id and a.operation_id = o.id
 where o.thread_id = %(thread)s and o.run_id = %(run)s and o.kind = 'model' and a.state <> 'waiting'
   and (a.state <> 'executing' or a.epoch < %(epoch)s)

-- name: steps
select count(*) as steps from checkpoints c
 where thread_id = %(thread)s and metadata ->> 'run_id' = %(run)s::text and metadata ->> 'source' = 'loop'
   and checkpoint_id > coalesce((select f.checkpoint_id from forks f  -- a fork has not made those that it took along
                                  where f.thread_id = %(thread)s and f.run_id = %(run)s::text::uuid), '')
   and not exists (  -- what takes an input in is no step
       select 1 from checkpoints p
        where p.thread_id = c.thread_id and p.checkpoint_ns = c.checkpoint_ns
          and p.checkpoint_id = c.parent_checkpoint_id and p.metadata ->> 'source' = 'input')

-- name: forgive
select forgive_1(%(thread)s, %(run)s)

-- name: attempts
select operation_id, number, epoch, worker, started_at, ended_at, state, failure_class, failure_message, retry_after,
       late, late_at, late_message
  from attempts where thread_id = %(thread)s order by started_at, number
