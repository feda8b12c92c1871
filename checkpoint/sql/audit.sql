-- name: heads
select thread_id, seq, encode(hash, 'hex') as hash from audit_heads order by thread_id

-- name: anchors
select number, at, entry, encode(hash, 'hex') as hash from audit_anchors order by number

-- name: entries
select thread_id, seq, entry, encode(hash, 'hex') as hash from audit order by thread_id, seq

-- name: entries_of
select thread_id, seq, entry, encode(hash, 'hex') as hash from audit where thread_id = %(thread)s order by seq

-- name: unrecorded
-- Decisions, grants, answers and completions that the chain does not know as they stand.
select d.thread_id, 'the decision ' || d.id || ' of ' || d.approval_id as what from decisions d
 where d.decision <> 'expire' and not exists (
    select 1 from audit a where a.thread_id = d.thread_id and a.entry::jsonb @> jsonb_build_object(
        'kind', 'decision', 'decision_id', d.id, 'approval', d.approval_id, 'decision', d.decision, 'by', d.principal,
        'vouched', d.vouched, 'digest', d.digest))
union all
select p.thread_id, 'the state ' || p.state || ' of ' || p.id from approvals p
 where p.state <> 'open' and not exists (
    select 1 from audit a where a.thread_id = p.thread_id and a.entry::jsonb @> jsonb_build_object(
        'approval', p.id, 'state', p.state, 'digest', p.digest))
union all
select p.thread_id, 'the use of ' || p.id from approvals p
 where p.used_at is not null and not exists (
    select 1 from audit a where a.thread_id = p.thread_id and a.entry::jsonb @> jsonb_build_object(
        'kind', 'use', 'approval', p.id, 'digest', p.digest))
union all
select w.thread_id, 'the answer to question ' || w.id from waits w
 where w.kind = 'question' and w.answered_by is not null and not exists (
    select 1 from audit a where a.thread_id = w.thread_id and a.entry::jsonb @> jsonb_strip_nulls(jsonb_build_object(
        'question', w.id, 'by', w.answered_by, 'answer_sha256', w.answer_sha256)))
union all
select c.thread_id, 'the completion ' || c.id || ' of ' || c.operation_id from completions c
 where not exists (
    select 1 from audit a where a.thread_id = c.thread_id and a.entry::jsonb @> jsonb_strip_nulls(jsonb_build_object(
        'kind', 'completion', 'completion', c.id, 'operation_id', c.operation_id, 'attempt', c.attempt,
        'state', c.state, 'result_sha256', c.result_sha256, 'by', c.completed_by, 'vouched', c.vouched)))
order by 1, 2

-- name: snapshot
set transaction isolation level repeatable read, read only

-- name: anchor
select number, hash from anchor_audit_1(%(seconds)s)

-- name: refuse
select audit_refusal_1(%(thread)s, %(refusal)s, %(approval)s, %(operation_id)s, %(decision)s, %(who)s, %(vouched)s,
                       %(digest)s, %(error)s)

-- name: reasons
select id::text, reason from decisions where thread_id = %(thread)s and reason is not null
