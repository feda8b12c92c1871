-- Standfast, the audit: who was asked, who decided what, what was refused, what ran out, what was used, who told the
-- end of what; and groups.
--
-- Each thread has a chain of entries. An entry is canonical JSON (RFC 8785) that says its own place; its hash is
-- SHA-256 over the hash before it and its bytes. Entries hold facts and digests, never a sealed value: the chain
-- outlives the erasure of what it tells of, and does not depend on any key. The chain '' tells of groups.
-- Entries of approvals, decisions and completions are written by deferred triggers: in the transaction of the change, whichever
-- code made it, at its very end, so that the lock on a chain's head is the last one and is held shortest.
-- An anchor is an entry of one chain over all: it holds the heads that have moved since the anchor before. So a chain
-- that was cut short, or written anew as a whole, differs from its anchor.
--
-- Who may write: only these functions, which run with the rights of the schema's owner. Nobody updates, deletes or
-- truncates, but the owner after `set standfast.audit_may_change = 'yes'`.

create table audit (
    thread_id text not null,                     -- no reference: it stays when the thread is erased
    seq       bigint not null check (seq > 0),
    entry     text not null,
    hash      bytea not null,
    primary key (thread_id, seq)
);

create table audit_heads (
    thread_id    text primary key,
    seq          bigint not null,
    hash         bytea not null,
    anchored_seq bigint not null default 0
);
create index audit_heads_moved on audit_heads (thread_id) where seq > anchored_seq;

create table audit_anchors (
    number bigint primary key,
    at     timestamptz not null,
    entry  text not null,
    hash   bytea not null
);

create table group_members (
    tenant    text not null,
    name      text not null,                     -- the group's
    principal text not null,
    added_by  text not null,
    added_at  timestamptz not null default standfast.now(),
    primary key (tenant, name, principal)
);
create index group_members_of on group_members (tenant, principal);

create function refuse_audit_change_1() returns trigger language plpgsql as $$
begin
    if current_setting('standfast.audit_may_change', true) = 'yes'
       and pg_has_role(current_user, (select relowner from pg_class where oid = tg_relid), 'member') then
        return null;
    end if;
    raise exception '% on %: the audit is only ever added to', tg_op, tg_table_name using errcode = '42501';
end $$;

create trigger kept before update or delete or truncate on audit
    for each statement execute function refuse_audit_change_1();
create trigger kept before update or delete or truncate on audit_anchors
    for each statement execute function refuse_audit_change_1();
create trigger kept before delete or truncate on audit_heads
    for each statement execute function refuse_audit_change_1();

-- Text, numbers and booleans only, without those that are null: what jsonb writes of them is what RFC 8785 says.
create function canonical_1(facts jsonb) returns text language sql immutable as $$
    select '{' || string_agg(to_json(key)::text || ':' || value::text, ',' order by key collate "C") || '}'
      from jsonb_each(jsonb_strip_nulls(facts));
$$;

create function utc_1(at timestamptz) returns text language sql stable as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
$$;

create function append_audit_1(thread text, facts jsonb) returns void
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
declare
    head audit_heads%rowtype;
    new_entry text;
begin
    insert into audit_heads (thread_id, seq, hash) values (thread, 0, '') on conflict do nothing;
    select * into head from audit_heads where thread_id = thread for no key update;
    new_entry := canonical_1(
        facts || jsonb_build_object('thread', thread, 'seq', head.seq + 1, 'at', utc_1(standfast.now())));
    insert into audit (thread_id, seq, entry, hash)
    values (thread, head.seq + 1, new_entry, sha256(head.hash || convert_to(new_entry, 'UTF8')))
    returning seq, hash into head.seq, head.hash;
    update audit_heads set seq = head.seq, hash = head.hash where thread_id = thread;
end $$;
revoke execute on function append_audit_1 from public;

create function audit_approval_1() returns trigger
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
declare
    kind text := case
        when tg_op = 'INSERT' then 'request'
        when new.state <> old.state then
            case new.state when 'expired' then 'expiry' when 'withdrawn' then 'withdrawal' else 'outcome' end
        when old.used_at is null and new.used_at is not null then 'use'
        else 'change' end;
begin
    perform append_audit_1(new.thread_id, jsonb_build_object(
        'kind', kind, 'approval', new.id, 'run', new.run_id, 'operation', new.operation,
        'operation_id', new.operation_id, 'state', new.state, 'digest', new.digest,
        'operation_digest', new.operation_digest, 'policy_version', new.policy_version,
        'by', case when tg_op = 'INSERT' then new.requested_by end, 'expires_at', utc_1(new.expires_at)));
    return null;
end $$;

create constraint trigger audited_request after insert on approvals
    deferrable initially deferred for each row execute function audit_approval_1();
create constraint trigger audited_change after update on approvals
    deferrable initially deferred for each row
    when ((old.state, old.used_at, old.digest, old.operation_digest, old.policy_version, old.expires_at)
          is distinct from (new.state, new.used_at, new.digest, new.operation_digest, new.policy_version,
                            new.expires_at))
    execute function audit_approval_1();

-- Of a reason the chain has a digest only: people write what must be erasable.
create function audit_decision_1() returns trigger
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
begin
    perform append_audit_1(new.thread_id, jsonb_build_object(
        'kind', case when tg_op = 'INSERT' then 'decision' else 'change' end, 'approval', new.approval_id,
        'decision_id', new.id, 'decision', new.decision, 'by', new.principal, 'vouched', new.vouched,
        'verified_by', new.verified_by, 'self_approved', new.self_approved, 'digest', new.digest,
        'reason_sha256', encode(sha256(convert_to(new.reason, 'UTF8')), 'hex')));
    return null;
end $$;

create constraint trigger audited_decision after insert on decisions
    deferrable initially deferred for each row when (new.decision <> 'expire')
    execute function audit_decision_1();
create constraint trigger audited_change after update on decisions
    deferrable initially deferred for each row execute function audit_decision_1();

-- An answer to a question that is no approval; of what it says the chain has a digest only.
create function audit_answer_1() returns trigger
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
begin
    perform append_audit_1(new.thread_id, jsonb_build_object(
        'kind', case when old.state = 'answered' then 'change' else 'answer' end, 'question', new.id,
        'run', new.run_id, 'node', new.node, 'by', new.answered_by, 'vouched', new.verified_by is null,
        'verified_by', new.verified_by, 'answer_sha256', new.answer_sha256));
    return null;
end $$;

create constraint trigger audited_answer after update on waits
    deferrable initially deferred for each row
    when (new.kind = 'question' and new.answered_by is not null
          and (old.state, old.answered_by, old.verified_by, old.answer_sha256)
              is distinct from (new.state, new.answered_by, new.verified_by, new.answer_sha256))
    execute function audit_answer_1();

-- The end of an operation, told from outside; of its result the chain has a digest only.
create function audit_completion_1() returns trigger
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
begin
    perform append_audit_1(new.thread_id, jsonb_build_object(
        'kind', case when tg_op = 'INSERT' then 'completion' else 'change' end, 'completion', new.id,
        'operation', (select o.name from operations o where o.thread_id = new.thread_id and o.id = new.operation_id),
        'operation_id', new.operation_id, 'attempt', new.attempt, 'state', new.state,
        'result_sha256', new.result_sha256, 'by', new.completed_by, 'vouched', new.vouched,
        'verified_by', new.verified_by));
    return null;
end $$;

create constraint trigger audited_completion after insert or update on completions
    deferrable initially deferred for each row execute function audit_completion_1();

-- What was asked for and refused changed nothing else; sent again it is recognised by its id.
create function audit_refusal_1(
    thread text, refusal uuid, in_approval text, in_operation_id text, in_decision text, who text, in_vouched boolean,
    in_digest text, in_error text)
returns void language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
begin
    perform 1 from audit a
      where a.thread_id = thread and a.entry::jsonb @> jsonb_build_object('kind', 'refusal', 'refusal', refusal);
    if not found then
        perform append_audit_1(thread, jsonb_build_object(
            'kind', 'refusal', 'refusal', refusal, 'approval', in_approval, 'operation_id', in_operation_id,
            'decision', in_decision, 'by', who, 'vouched', in_vouched, 'digest', in_digest, 'error', in_error));
    end if;
end $$;

create function audit_membership_1() returns trigger
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
declare
    member group_members%rowtype := case tg_op when 'DELETE' then old else new end;
    acting text := nullif(current_setting('standfast.acting', true), '');  -- none: somebody wrote the table by hand
    verified text := nullif(current_setting('standfast.acting_verified_by', true), '');
begin
    perform append_audit_1('', jsonb_build_object(
        'kind', 'group', 'tenant', member.tenant, 'group', member.name, 'member', member.principal,
        'change', lower(tg_op), 'by', coalesce(acting, session_user), 'vouched', acting is not null and verified is null,
        'verified_by', case when acting is null then 'database-role' else verified end));
    return null;
end $$;

create constraint trigger audited_membership after insert or update or delete on group_members
    deferrable initially deferred for each row execute function audit_membership_1();

-- True if that changed anything. `verified` is who established the name of `who`; null: nobody.
create function set_member_1(in_tenant text, in_name text, in_principal text, is_member boolean, who text, verified text)
returns boolean language plpgsql as $$
begin
    perform set_config('standfast.acting', who, true);
    perform set_config('standfast.acting_verified_by', coalesce(verified, ''), true);
    if is_member then
        insert into group_members (tenant, name, principal, added_by) values (in_tenant, in_name, in_principal, who)
        on conflict do nothing;
    else
        delete from group_members where tenant = in_tenant and name = in_name and principal = in_principal;
    end if;
    return found;
end $$;

-- Anchor the heads that have moved, at most once in so many seconds. One row if an anchor was made.
create function anchor_audit_1(seconds double precision)
returns table (number bigint, hash text)
language plpgsql security definer set search_path = standfast, pg_catalog, pg_temp as $$
declare
    last audit_anchors%rowtype;
    at_now timestamptz := standfast.now();
    heads text;
    new_entry text;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('audit_anchor', 0)) then
        return;
    end if;
    select * into last from audit_anchors a order by a.number desc limit 1;
    if last.at > at_now - make_interval(secs => seconds) then
        return;
    end if;
    with moved as (
        select h.thread_id, h.seq, h.hash from audit_heads h where h.seq > h.anchored_seq
           for no key update skip locked
    ), anchored as (
        update audit_heads h set anchored_seq = moved.seq from moved where h.thread_id = moved.thread_id
    )
    select string_agg('[' || to_json(m.thread_id)::text || ',' || m.seq || ',"' || encode(m.hash, 'hex') || '"]', ','
                      order by m.thread_id collate "C") into heads from moved m;
    if heads is null then
        return;
    end if;
    last.number := coalesce(last.number, 0) + 1;
    new_entry := '{"at":' || to_json(utc_1(at_now))::text || ',"heads":[' || heads || '],"number":' || last.number || '}';
    last.hash := sha256(coalesce(last.hash, '') || convert_to(new_entry, 'UTF8'));
    insert into audit_anchors values (last.number, at_now, new_entry, last.hash);
    return query select last.number, encode(last.hash, 'hex');
end $$;
