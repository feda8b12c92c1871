-- name: begin
select begin_park_1(%(thread)s, %(epoch)s, %(names)s) as held

-- name: put
insert into waits (thread_id, id, run_id, kind, approval_id, node, request, interrupt_id, position, quorum, name,
                   match, until)
values (%(thread)s, %(id)s, %(run)s, %(kind)s, %(approval)s, %(node)s, %(request)s, %(interrupt)s, %(position)s,
        %(quorum)s, %(name)s, %(match)s, %(until)s)
on conflict (thread_id, id) do update set state = 'open', until = excluded.until
   where waits.state = 'timed_out' and excluded.until > standfast.now()  -- the clock has stepped back

-- name: withdraw
update waits set state = 'withdrawn', ended_at = standfast.now()
 where thread_id = %(thread)s and run_id = %(run)s and state = 'open' and id <> all(%(listed)s)

-- name: settle
update waits w set state = 'answered', ended_at = standfast.now()
 where w.thread_id = %(thread)s and w.state = 'open' and w.approval_id is not null
   and (select a.state from approvals a where a.thread_id = w.thread_id and a.id = w.approval_id) <> 'open'

-- name: begin_join
select begin_join_1(%(children)s)

-- name: match_joins
select match_joins_1(%(thread)s)

-- name: match
select match_waits_1(%(thread)s)

-- name: end_due
select end_due_waits_1(%(thread)s, %(epoch)s)

-- name: park
select park_1(%(thread)s, %(epoch)s, least(
    (select deadline from runs where thread_id = %(thread)s and id = %(run)s),
    (select min(expires_at) from approvals where thread_id = %(thread)s and state = 'open'),
    (select min(until) from waits where thread_id = %(thread)s and state = 'open'))) as parked

-- name: of_run
select id, run_id::text, kind, approval_id, node, request, state, answer, answered_by, verified_by, opened_at, ended_at,
       interrupt_id, position, quorum, name, match, until, event_seq
  from waits where thread_id = %(thread)s and run_id = %(run)s order by opened_at, interrupt_id, position, id

-- name: named
select id, run_id::text, kind, approval_id, node, request, state, answer, answered_by, verified_by, opened_at, ended_at,
       interrupt_id, position, quorum, name, match, until, event_seq
  from waits where thread_id = %(thread)s and id = any(%(ids)s) and run_id = %(run)s
 order by opened_at, interrupt_id, position, id

-- name: answer
select verdict, answered_by from answer_1(
    %(thread)s, %(wait)s, %(id)s, %(answer)s, %(who)s, %(verified_by)s, %(sha256)s)

-- name: answers
select id, answer from waits where thread_id = %(thread)s and answer_sha256 is not null
