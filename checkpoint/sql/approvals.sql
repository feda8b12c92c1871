-- name: fence
select assert_lease_1(%(thread)s, %(epoch)s)

-- name: withdraw
update approvals set state = 'withdrawn', decided_at = standfast.now()
 where thread_id = %(thread)s and id = %(id)s and state = 'open'

-- name: now
select standfast.now() as now, tenant from threads where id = %(thread)s

-- name: plan
insert into operations (thread_id, id, run_id, kind, name, namespace, turn, index, effect, digest, arguments)
values (%(thread)s, %(operation_id)s, %(run)s, 'tool', %(operation)s, %(namespace)s, %(turn)s, %(index)s,
        %(effect)s, %(operation_digest)s, %(arguments)s)
on conflict (thread_id, id) do nothing

-- name: supersede
update approvals set state = 'withdrawn', decided_at = standfast.now()
 where thread_id = %(thread)s and operation_id = %(operation_id)s and kind = %(kind)s and round < %(round)s
   and state = 'open'

-- name: open
insert into approvals (thread_id, id, run_id, operation_id, operation, operation_version, round, digest,
                       operation_digest, policy_version, required, group_name, group_source, approvers, requester_may_decide,
                       edit_needs_another, reason_required, allowed, editor, arguments, request, requested_by,
                       expires_at, remind_at, remind_after, kind)
values (%(thread)s, %(id)s, %(run)s, %(operation_id)s, %(operation)s, %(operation_version)s, %(round)s, %(digest)s,
        %(operation_digest)s, %(policy_version)s, %(required)s, %(group)s, %(source)s, %(approvers)s, %(requester_may_decide)s,
        %(edit_needs_another)s, %(reason_required)s, %(allowed)s, %(editor)s, %(approval_arguments)s, %(request)s,
        %(requested_by)s, %(expires_at)s, %(remind_at)s, %(remind_after)s, %(kind)s)
on conflict (thread_id, id) do nothing

-- name: get
select a.*, a.run_id::text as run, t.tenant, d.id::text as decision_id, d.decision, d.principal, d.vouched,
       d.verified_by, d.self_approved, d.reason, d.response, v.votes
  from approvals a
  join threads t on t.id = a.thread_id
  left join lateral (select * from decisions d where d.thread_id = a.thread_id and d.approval_id = a.id
                      order by d.decided_at desc, d.decision = 'approve', d.id limit 1) d on true
  left join lateral (select array_agg(d.principal order by d.decided_at) as votes from decisions d
                      where d.thread_id = a.thread_id and d.approval_id = a.id and d.granted = a.digest) v on true
 where a.id = %(id)s

-- name: granted
select a.*, a.run_id::text as run, t.tenant, d.id::text as decision_id, d.decision, d.principal, d.vouched,
       d.verified_by, d.self_approved, d.reason, d.response, v.votes
  from approvals a
  join threads t on t.id = a.thread_id
  left join lateral (select * from decisions d where d.thread_id = a.thread_id and d.approval_id = a.id
                      order by d.decided_at desc, d.decision = 'approve', d.id limit 1) d on true
  left join lateral (select array_agg(d.principal order by d.decided_at) as votes from decisions d
                      where d.thread_id = a.thread_id and d.approval_id = a.id and d.granted = a.digest) v on true
 where a.thread_id = %(thread)s and a.operation_id = %(operation_id)s and a.state = 'approved'
 order by a.round

-- name: of_outcome
select a.*, a.run_id::text as run, t.tenant, d.id::text as decision_id, d.decision, d.principal, d.vouched,
       d.verified_by, d.self_approved, d.reason, d.response, v.votes
  from approvals a
  join threads t on t.id = a.thread_id
  left join lateral (select * from decisions d where d.thread_id = a.thread_id and d.approval_id = a.id
                      order by d.decided_at desc, d.decision = 'approve', d.id limit 1) d on true
  left join lateral (select array_agg(d.principal order by d.decided_at) as votes from decisions d
                      where d.thread_id = a.thread_id and d.approval_id = a.id and d.granted = a.digest) v on true
 where a.thread_id = %(thread)s and a.operation_id = %(operation_id)s and a.kind = 'outcome'
 order by a.round

-- name: list
select a.*, a.run_id::text as run, t.tenant, d.id::text as decision_id, d.decision, d.principal, d.vouched,
       d.verified_by, d.self_approved, d.reason, d.response, v.votes
  from approvals a
  join threads t on t.id = a.thread_id
  left join lateral (select * from decisions d where d.thread_id = a.thread_id and d.approval_id = a.id
                      order by d.decided_at desc, d.decision = 'approve', d.id limit 1) d on true
  left join lateral (select array_agg(d.principal order by d.decided_at) as votes from decisions d
                      where d.thread_id = a.thread_id and d.approval_id = a.id and d.granted = a.digest) v on true
 where (%(thread)s::text is null or a.thread_id = %(thread)s)
   and (%(state)s::text is null or a.state = %(state)s)
   and (%(state)s::text is distinct from 'open' or a.expires_at > standfast.now())
 order by a.requested_at desc, a.id
 limit %(limit)s::bigint

-- name: states
select id, state from approvals where thread_id = %(thread)s and id = any(%(ids)s)

-- name: by_digest
select id from approvals where thread_id = %(thread)s and digest = %(digest)s order by requested_at desc limit 1

-- name: successor
select n.id from approvals a join approvals n on n.thread_id = a.thread_id and n.operation_id = a.operation_id
                                     and n.kind = a.kind
 where a.id = %(id)s and n.round > a.round order by n.round desc limit 1

-- name: to_remind
select id, thread_id, run_id::text as run, operation, requested_by, expires_at, remind_at from approvals
 where state = 'open' and remind_at <= standfast.now() and expires_at > standfast.now()
 order by remind_at limit %(most)s for update skip locked

-- name: reminded
update approvals set remind_at = case when standfast.now() + remind_after < expires_at
                                      then standfast.now() + remind_after end
 where thread_id = %(thread)s and id = %(id)s

-- name: decide
select verdict, state, digest from decide_1(
    %(id)s, %(decision_id)s, %(decision)s, %(principal)s, %(vouched)s, %(groups)s, %(seen)s, %(reason)s, %(response)s,
    %(arguments)s, %(approval_arguments)s, %(operation_arguments)s, %(operation_digest)s, %(digest)s, %(source)s, %(members)s,
    %(verified_by)s)

-- name: expire
select expire_approval_1(thread_id, id) from approvals
 where thread_id = %(thread)s and state = 'open' and expires_at <= standfast.now()
