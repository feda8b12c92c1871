-- name: begin
select * from begin_attempt_1(
    %(thread)s, %(epoch)s, %(id)s, %(run)s, %(kind)s, %(name)s, %(namespace)s, %(turn)s, %(index)s, %(effect)s,
    %(digest)s, %(arguments)s, %(worker)s, %(needs_grant)s, %(approval)s, %(granted)s,
    %(policy_version)s, %(required)s, %(members)s)

-- name: finish
select finish_attempt_1(%(thread)s, %(epoch)s, %(id)s, %(attempt)s, %(state)s, %(result)s, %(failure_class)s,
                        %(failure_message)s)

-- name: list
select id, run_id::text, kind, name, namespace, turn, index, effect, digest, state, arguments, result,
       failure_class, failure_message, attempts, created_at, updated_at
  from operations
 where thread_id = %(thread)s and (%(run)s::uuid is null or run_id = %(run)s)
 order by created_at, turn, index, id

-- name: failed_attempts
select count(*) as failed from attempts where thread_id = %(thread)s and operation_id = %(id)s and state = 'failed'

-- name: attempts
select operation_id, number, epoch, worker, started_at, ended_at, state, failure_class, failure_message
  from attempts where thread_id = %(thread)s order by started_at, number
