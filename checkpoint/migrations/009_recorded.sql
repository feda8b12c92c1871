-- What a node records in its middle (a durable step's result, a moment, a random number) stands in the ledger, beside
-- operations and model calls.

alter table operations drop constraint operations_kind_check;
alter table operations add constraint operations_kind_check check (kind in ('tool', 'model', 'step'));

-- A fork is a new thread that goes on from a checkpoint of another one, which is left as it is. What that one has done
-- in the run is in the fork's ledger too, under the same ids, marked with where it was done. Grants are not taken along.

alter table operations add column inherited_from text;  -- the thread that did it

create table forks (
    thread_id        text primary key references threads (id) on delete cascade,
    run_id           uuid not null,                      -- the run that goes on from there
    source_thread_id text not null,                      -- may be deleted, so no reference
    source_run_id    uuid not null,
    checkpoint_id    text not null,
    lineage          jsonb not null,                     -- [thread, run] of every source, the first one's first
    effects          boolean not null,                   -- somebody has said that new effects may happen
    forked_by        text not null,
    vouched          boolean not null,
    forked_at        timestamptz not null default standfast.now()
);

-- verdict: forked | again (this very fork) | unknown | no_checkpoint | taken. One that is to be altered asks models
-- again, and is over until its values are written: nobody goes on without them. Its limits are those of the source's
-- run: as much time from now on, and as much to spend.
create function fork_1(
    source text, at text, target text, run uuid, in_effects boolean, altered boolean, in_by text, in_vouched boolean,
    in_tenant text, in_deadline timestamptz, in_budget bytea, holder text, worker text, seconds double precision)
returns table (verdict text, epoch bigint, head text) language plpgsql as $$
declare
    t threads%rowtype;
    from_run uuid;
    known forks%rowtype;
begin
    perform keep_thread_1(source);
    select * into t from threads where id = source and tenant = in_tenant;
    if not found then
        return query select 'unknown', null::bigint, null::text;
        return;
    end if;
    select (c.metadata ->> 'run_id')::uuid into from_run
      from checkpoints c where c.thread_id = source and c.checkpoint_ns = '' and c.checkpoint_id = at;
    if from_run is null then
        return query select 'no_checkpoint', null::bigint, null::text;
        return;
    end if;
    insert into threads (id, uuid, tenant, owner, graph, version, fingerprint, run_id)
    values (target, coalesce(uuid_1(target), gen_random_uuid()), t.tenant, in_by, t.graph, t.version, t.fingerprint, run)
    on conflict (id) do nothing;
    if not found then
        select * into known from forks f where f.thread_id = target;
        if known.run_id is distinct from run then
            return query select 'taken', null::bigint, null::text;
            return;
        end if;
        return query select 'again', c.epoch, c.head from claim_lease_1(target, holder, worker, seconds) c;
        return;
    end if;
    insert into runs (thread_id, id, number, tenant, version, fingerprint, parent_run_id, state, requested_by, vouched,
                      model, collection_id, input, settings, deadline, budget, reason)
    select target, run, 1, r.tenant, r.version, r.fingerprint, r.id, case when altered then 'cancelled' else 'open' end,
           in_by, in_vouched, r.model, r.collection_id, r.input, r.settings,
           coalesce(in_deadline, standfast.now() + (r.deadline - r.accepted_at)), coalesce(in_budget, r.budget),
           case when altered then 'whoever forked it did not come to write its values' end
      from runs r where r.thread_id = source and r.id = from_run;
    insert into forks (thread_id, run_id, source_thread_id, source_run_id, checkpoint_id, lineage, effects,
                       forked_by, vouched)
    select target, run, source, from_run, at,
           coalesce(f.lineage, '[]') || jsonb_build_array(jsonb_build_array(source, from_run)), in_effects, in_by,
           in_vouched
      from (values (1)) as one left join forks f on f.thread_id = source and f.run_id = from_run;
    insert into artifact_references (thread_id, sha256, label, as_part)
    select target, a.sha256, a.label, a.as_part from artifact_references a where a.thread_id = source;
    perform copy_chain_1(source, at, target, from_run, run);
    perform drop_parts_1(target);
    insert into operations (thread_id, id, run_id, kind, name, namespace, turn, index, effect, digest, state, arguments,
                            result, failure_class, failure_message, attempts, created_at, updated_at, inherited_from)
    select target, o.id, run, o.kind, o.name, o.namespace, o.turn, o.index, o.effect, o.digest, o.state, o.arguments,
           o.result, o.failure_class, o.failure_message, o.attempts, o.created_at, o.updated_at,
           coalesce(o.inherited_from, source)
      from operations o
     where o.thread_id = source and o.run_id = from_run
       and o.state in ('succeeded', 'failed', 'unknown', 'reconciled') and (o.kind <> 'model' or not altered);
    return query select 'forked', c.epoch, c.head from claim_lease_1(target, holder, worker, seconds) c;
end $$;

-- A fork has no new effects until somebody says so.
create function refuse_in_fork_1(thread text, name text) returns void language plpgsql as $$
declare
    f forks%rowtype;
begin
    select * into f from forks where thread_id = thread and not effects;
    if found then
        raise exception '% was not carried out: thread % is a fork of %, made without leave for new effects',
            name, thread, f.source_thread_id using errcode = 'SF009';
    end if;
end $$;
