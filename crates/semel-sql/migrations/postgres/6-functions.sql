-- The ledger's protocol as functions, for programs in any language that can open a transaction: claim,
-- effects and outcome are one commit, as with `transact`. docs/reference/sql-functions.md says how to call them.
-- * A claim is held by the open transaction, not by a row: by the advisory lock that every insert of a record
--   asks for, or by the lock on the record that it will overwrite. A rival is told at once and never waits.
--   The record is written once, by semel_complete.
-- * What a claim will write waits in a row of semel_unfinished, which no other transaction ever sees and no
--   caller may touch: it is gone once the transaction has ended, and is undone with a savepoint. No session
--   keeps anything. The setting semel.claims lists the keys that are claimed; a caller can change it, so it
--   decides only which claims of its own transaction a caller is warned of.
-- * Each function runs with the rights of its owner and looks up names in the server's catalogue only (see the
--   end), so a role needs no rights on the tables, and nothing that others create is called.

-- One row for each claim until it is completed. Its deferred trigger lets no transaction commit with a claim
-- that was not completed, or begin a claim where nothing follows it.
create unlogged table semel_unfinished (
    -- Null where the record is written already, by semel_handle.
    claim    text,
    -- A semel_claimed, as text: a column of that type would keep semel_record from being altered.
    claimed  text,
    holder   bigint      not null default txid_current(),
    begun_at timestamptz not null
);

create function semel_refuse_unfinished() returns trigger language plpgsql security definer as $semel$
begin
    if new.claim is not null and not exists (
        select from semel_unfinished u
        where u.ctid = new.ctid and u.claim = new.claim and u.holder = new.holder) then
        return null;
    end if;
    -- No other statement came after the one that claimed: it was a transaction by itself.
    if statement_timestamp() = new.begun_at then
        raise exception using errcode = '25P01',
            message = 'semel: a claim was made outside a transaction, where it protects nothing, or after SET CONSTRAINTS ALL IMMEDIATE',
            hint = 'send BEGIN before it, or turn autocommit off, and COMMIT as a message of its own';
    end if;
    if new.claim is not null then
        raise exception using errcode = '55000',
            message = 'semel: this transaction made a claim and did not complete it, so it cannot commit',
            hint = 'call semel_complete as its last statement (and before SET CONSTRAINTS ALL IMMEDIATE), or roll back';
    end if;
    return null;
end
$semel$;

create constraint trigger semel_unfinished after insert on semel_unfinished
    deferrable initially deferred for each row execute function semel_refuse_unfinished();

-- Refuses what the library refuses: a text that is blank, too long or has a control character.
create function semel_check_text(what text, value text, most integer) returns void
language plpgsql immutable as $semel$
begin
    if value is null or value ~ '^[\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*$' then
        raise exception using errcode = '22023',
            message = format('semel: the %s is blank; give it a value', what);
    elsif octet_length(value) > most then
        raise exception using errcode = '22023', message = format(
            'semel: the %s has %s bytes, at most %s are allowed', what, octet_length(value), most);
    elsif value ~ '[\u0001-\u001f\u007f-\u009f]' then
        raise exception using errcode = '22023', message = format(
            'semel: the %s has a control character at byte %s; remove or encode it', what,
            octet_length(substring(value from '^[^\u0001-\u001f\u007f-\u009f]*')));
    end if;
end
$semel$;

create function semel_now() returns bigint language sql volatile as $semel$
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$semel$;

-- The time that comes so many microseconds after another; what lies beyond the last one means "for ever". Null
-- stays null, which least() would ignore.
create function semel_after(us bigint, span bigint) returns bigint language sql immutable as $semel$
    select us + case when span > 9223372036854775807 - us then 9223372036854775807 - us else span end
$semel$;

create function semel_span(what text, span interval, least_ms bigint, most_ms bigint) returns bigint
language plpgsql immutable as $semel$
declare
    seconds double precision := extract(epoch from span);
begin
    if span is null or seconds * 1000 < least_ms or seconds * 1000 > most_ms then
        raise exception using errcode = '22023', message = format(
            'semel: %s is %s; it must be at least %s ms and at most %s ms', what, coalesce(span::text, 'null'),
            least_ms, most_ms);
    end if;
    return (least(seconds, 9e12) * 1000000)::bigint;
end
$semel$;

-- Sixteen bytes as 26 characters of upper-case Crockford base32. One expression: a loop takes ten times as long.
create function semel_ulid_text(bytes bytea) returns text language plpgsql immutable strict as $semel$
declare
    a constant text := '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
    b constant varbit := B'00' || ('x' || encode(bytes, 'hex'))::bit(128);
begin
    return
        substr(a, substring(b from 1 for 5)::integer + 1, 1) || substr(a, substring(b from 6 for 5)::integer + 1, 1)
        || substr(a, substring(b from 11 for 5)::integer + 1, 1) || substr(a, substring(b from 16 for 5)::integer + 1, 1)
        || substr(a, substring(b from 21 for 5)::integer + 1, 1) || substr(a, substring(b from 26 for 5)::integer + 1, 1)
        || substr(a, substring(b from 31 for 5)::integer + 1, 1) || substr(a, substring(b from 36 for 5)::integer + 1, 1)
        || substr(a, substring(b from 41 for 5)::integer + 1, 1) || substr(a, substring(b from 46 for 5)::integer + 1, 1)
        || substr(a, substring(b from 51 for 5)::integer + 1, 1) || substr(a, substring(b from 56 for 5)::integer + 1, 1)
        || substr(a, substring(b from 61 for 5)::integer + 1, 1) || substr(a, substring(b from 66 for 5)::integer + 1, 1)
        || substr(a, substring(b from 71 for 5)::integer + 1, 1) || substr(a, substring(b from 76 for 5)::integer + 1, 1)
        || substr(a, substring(b from 81 for 5)::integer + 1, 1) || substr(a, substring(b from 86 for 5)::integer + 1, 1)
        || substr(a, substring(b from 91 for 5)::integer + 1, 1) || substr(a, substring(b from 96 for 5)::integer + 1, 1)
        || substr(a, substring(b from 101 for 5)::integer + 1, 1) || substr(a, substring(b from 106 for 5)::integer + 1, 1)
        || substr(a, substring(b from 111 for 5)::integer + 1, 1) || substr(a, substring(b from 116 for 5)::integer + 1, 1)
        || substr(a, substring(b from 121 for 5)::integer + 1, 1) || substr(a, substring(b from 126 for 5)::integer + 1, 1);
end
$semel$;

-- The bytes of such a text; null for every other spelling.
create function semel_ulid_bytes(ulid text) returns bytea language sql immutable strict as $semel$
    select case when ulid ~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}$' then (
        select decode(string_agg(lpad(to_hex(substring(b from 8 * n + 3 for 8)::integer), 2, '0'), '' order by n), 'hex')
        from (
            select string_agg((strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', c) - 1)::bit(5)::text, '' order by at)::varbit as b
            from regexp_split_to_table(ulid, '') with ordinality t (c, at)
        ) bits, generate_series(0, 15) n
    ) end
$semel$;

-- A new id: the time in milliseconds and 80 random bits.
create function semel_ulid() returns bytea language sql volatile as $semel$
    select substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        || substring(u from 1 for 6) || substring(u from 13)
    from (select uuid_send(gen_random_uuid()) as u) random
$semel$;

-- The identity of a key, as the library computes it: every part is preceded by its length.
create function semel_digest(kind integer, tenant text, scope text, principal bytea, id text) returns bytea
language sql immutable as $semel$
    select sha256(convert_to('semel/key/1', 'UTF8') || '\x00'::bytea || substring(int4send(kind) from 4)
        || int4send(octet_length(convert_to(tenant, 'UTF8'))) || convert_to(tenant, 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8'))) || convert_to(scope, 'UTF8')
        || int4send(octet_length(principal)) || principal
        || int4send(octet_length(convert_to(id, 'UTF8'))) || convert_to(id, 'UTF8'))
$semel$;

-- The advisory lock of a key: the first eight bytes of its digest.
create function semel_lock_key(digest bytea) returns bigint language sql immutable as $semel$
    select ('x' || encode(substring(digest from 1 for 8), 'hex'))::bit(64)::bigint
$semel$;

-- The stored form of a request's hash: 64 hex digits are a SHA-256 that the caller computed, 66 are the
-- scheme of a fingerprint and its hash. Without one only the key is compared.
create function semel_fingerprint(request_hash text) returns bytea language plpgsql immutable as $semel$
begin
    if coalesce(request_hash, '') = '' then
        return '\x'::bytea;
    elsif request_hash !~ '^([0-9a-fA-F]{64}|[0-9a-fA-F]{66})$' then
        raise exception using errcode = '22023', message = format(
            'semel: a request hash must be 64 hex digits (SHA-256), got %s bytes that are not', octet_length(request_hash));
    end if;
    return decode(case length(request_hash) when 64 then '04' else '' end || request_hash, 'hex');
end
$semel$;

-- A record that is to be written, for a claim that is new: the first attempt of a new operation.
create function semel_draft(kind integer, tenant text, scope text, id text, principal text, fingerprint bytea, keep_us bigint)
returns semel_record language plpgsql volatile as $semel$
declare
    r semel_record;
begin
    -- Nearly all keys are visible ASCII, and need no closer look.
    if not coalesce(tenant ~ '^[!-~]+$' and scope ~ '^[!-~]+$' and id ~ '^[!-~]+$'
        and length(tenant) <= 64 and length(scope) <= 128 and length(id) <= 255, false) then
        perform semel_check_text('tenant of a key', tenant, 64);
        perform semel_check_text('scope of a key', scope, 128);
        perform semel_check_text('id of a key', id, 255);
    end if;
    r.kind := kind;
    r.tenant := tenant;
    r.scope := scope;
    r.id := id;
    r.principal := case when principal is null then '\x'::bytea
        else sha256(convert_to('semel/principal/1', 'UTF8') || '\x00'::bytea || convert_to(principal, 'UTF8')) end;
    r.digest := semel_digest(kind, tenant, scope, r.principal, id);
    r.fingerprint := fingerprint;
    r.number := 1;
    r.operation_id := semel_ulid();
    r.attempt_id := uuid_send(gen_random_uuid());
    r.attempt := 1;
    r.owner := session_user || ':' || pg_backend_pid() || ':sql';
    r.on_crash := 0;
    r.keep_us := keep_us;
    return r;
end
$semel$;

-- A claim that was made and not completed: the record that is to be written, and the version that it writes
-- over, if the key has one.
create type semel_claimed as (record semel_record, judged_attempt_id bytea, judged_number bigint);

-- The claim of this name that this transaction has made and not completed; null if there is none. The name says
-- where its row is, so that there is no index to keep, nor one on which serializable transactions could meet.
create function semel_held(claim text) returns semel_claimed language plpgsql volatile as $semel$
declare
    held text;
begin
    if claim ~ '^[0-9a-f]{32}\([0-9]{1,9},[0-9]{1,4}\)$' then
        select u.claimed into held from semel_unfinished u
            where u.ctid = substr(semel_held.claim, 33)::tid and u.claim = left(semel_held.claim, 32)
                and u.holder = txid_current();
    end if;
    return held::semel_claimed;
end
$semel$;

-- Whether this transaction has a claim on the key of this digest.
create function semel_is_claimed(digest bytea) returns boolean language sql stable as $semel$
    select strpos(coalesce(current_setting('semel.claims', true), ''), encode(digest, 'hex')) > 0
$semel$;

-- Judges a request by the stored record, as `judge` of the library does; the order of the checks is part of
-- the contract. The change is what the verdict does to the record: nothing (null), 'grant' another attempt of
-- its operation, 'replace' it by a new operation, 'suspend' it as uncertain, or 'redate' its times, which a
-- clock that ran ahead wrote.
create function semel_judge(r semel_record, fingerprint bytea, us bigint,
    out verdict text, out change text, out retry_after_ms bigint, out error text)
language plpgsql immutable as $semel$
declare
    remaining bigint;
    is_ahead boolean := r.updated_at > us + 1000000;
begin
    if r.state in (1, 2) and r.expires_at <= us then
        verdict := 'run';
        change := 'replace';
        return;
    end if;
    if r.fingerprint <> fingerprint and r.fingerprint <> '\x' and fingerprint <> '\x' then
        verdict := 'mismatch';
        return;
    end if;
    error := coalesce(r.error, 'no error was recorded');
    case r.state
    when 0 then
        if r.lease_until > us then
            -- Never more than the length of the lease: it was written at updated_at.
            remaining := least(r.lease_until - us, r.lease_until - r.updated_at);
            verdict := 'in_progress';
            change := case when is_ahead then 'redate' end;
            error := null;
        elsif r.on_crash = 0 then
            verdict := 'run';
            change := 'grant';
            error := null;
        else
            verdict := 'uncertain';
            change := 'suspend';
            error := format('attempt %s ended without an answer: its lease lapsed', r.attempt);
        end if;
    when 1 then
        verdict := 'replay';
        error := case when r.omitted_bytes is not null then
            format('the outcome had %s bytes, which is more than was kept', r.omitted_bytes) end;
    when 2 then
        remaining := least(r.retry_at - us, r.retry_at - r.updated_at);
        if r.retry_at is null then
            verdict := 'failed';
        elsif remaining > 0 then
            verdict := 'backoff';
            change := case when is_ahead then 'redate' end;
        else
            verdict := 'run';
            change := 'grant';
            remaining := null;
            error := null;
        end if;
    when 3 then
        verdict := 'dead';
    when 4 then
        verdict := 'uncertain';
    when 5 then
        verdict := 'dead';
        error := left('discarded: ' || error, 256);
    else
        raise exception using errcode = 'XX001',
            message = format('semel: the record of a key has the state %s, which does not exist', r.state);
    end case;
    retry_after_ms := (remaining + 999) / 1000;
end
$semel$;

-- Looks at a key, and takes it for this transaction if the verdict is 'run'. The record, if there is one, is
-- given back as it is; a change that is not a grant is written at once.
create function semel_take(draft semel_record,
    out verdict text, out claimed semel_claimed, out existing semel_record, out retry_after_ms bigint, out error text)
language plpgsql volatile as $semel$
declare
    us bigint;
    ahead bigint;
    is_locked boolean;
    is_ours boolean;
    new semel_record := draft;
    judged record;
begin
    -- In a statement of its own: the next one sees what the last holder of the lock committed.
    is_locked := pg_try_advisory_xact_lock(semel_lock_key(draft.digest));
    select r.* into existing from semel_record r where r.digest = draft.digest;
    -- Read after the lock was taken, so that it is above the fence of every claim before.
    us := semel_now();
    -- The lock is given again to its own transaction: a claim that is open in it (one of the library's has a
    -- mark) is known by other means.
    is_ours := concat(current_setting('semel.claims', true), current_setting('semel.claim', true)) <> ''
        and (semel_is_claimed(draft.digest)
            or coalesce(current_setting('semel.claim', true), '') = encode(draft.digest, 'hex') || '@'
                || (select t.typrelid from pg_type t where t.oid = pg_typeof(draft))::text);
    if existing.digest is null then
        verdict := case when is_locked and not is_ours then 'run' else 'in_progress' end;
        new.fence := us;
        new.created_at := us;
        claimed := row(new, null, null)::semel_claimed;
        return;
    end if;
    judged := semel_judge(existing, draft.fingerprint, us);
    verdict := judged.verdict;
    retry_after_ms := judged.retry_after_ms;
    error := judged.error;
    -- The type is the reference of every record of an event.
    if existing.reference <> draft.reference and judged.change is distinct from 'replace' then
        verdict := 'mismatch';
        return;
    end if;
    if judged.change is null then
        return;
    end if;
    -- Only the judged version is written over. A record that another transaction has locked is not waited for.
    perform from semel_record r
        where r.digest = draft.digest and r.attempt_id = existing.attempt_id and r.number = existing.number
        for update skip locked;
    if not found or is_ours then
        verdict := 'in_progress';
        retry_after_ms := null;
        error := null;
        return;
    end if;
    case judged.change
    when 'suspend' then
        update semel_record r set state = 4, number = r.number + 1, lease_until = null, error = judged.error,
            updated_at = us, completed_at = us, sweep_at = null
            where r.digest = draft.digest;
    when 'redate' then
        ahead := existing.updated_at - us;
        update semel_record r set number = r.number + 1, lease_until = r.lease_until - ahead,
            retry_at = r.retry_at - ahead, expires_at = r.expires_at - ahead, sweep_at = r.sweep_at - ahead,
            updated_at = us,
            completed_at = case when r.completed_at is not null then least(r.completed_at, us) end
            where r.digest = draft.digest;
    else
        new.fence := greatest(existing.fence + 1, us);
        new.created_at := us;
        if judged.change = 'grant' then
            new.number := existing.number + 1;
            new.operation_id := existing.operation_id;
            new.attempt := existing.attempt + 1;
            new.created_at := existing.created_at;
            -- A retry without a hash keeps that of the record.
            if new.fingerprint = '\x' then
                new.fingerprint := existing.fingerprint;
            end if;
        end if;
        claimed := row(new, existing.attempt_id, existing.number)::semel_claimed;
    end case;
end
$semel$;

-- Writes the record of a claim, with its end at this time. False if another record was written meanwhile, by a
-- session that does not ask for the lock, or after the snapshot of this transaction.
create function semel_write(claimed semel_claimed, keep_us bigint) returns boolean
language plpgsql volatile as $semel$
declare
    r semel_record := claimed.record;
    written integer;
begin
    r.updated_at := semel_now();
    r.completed_at := r.updated_at;
    r.expires_at := semel_after(r.updated_at, keep_us);
    r.sweep_at := r.expires_at;
    if claimed.judged_attempt_id is null then
        insert into semel_record select r.* on conflict do nothing;
    else
        update semel_record s set number = r.number, fingerprint = r.fingerprint, state = r.state,
            operation_id = r.operation_id, attempt_id = r.attempt_id, attempt = r.attempt, fence = r.fence,
            owner = r.owner, lease_until = null, retry_at = r.retry_at, on_crash = r.on_crash,
            keep_us = r.keep_us, body = r.body, content_type = r.content_type, reference = r.reference,
            omitted_bytes = null, error = r.error, created_at = r.created_at, updated_at = r.updated_at,
            completed_at = r.completed_at, expires_at = r.expires_at, sweep_at = r.sweep_at
            where s.digest = r.digest and s.attempt_id = claimed.judged_attempt_id
                and s.number = claimed.judged_number;
    end if;
    get diagnostics written = row_count;
    return written = 1;
end
$semel$;

-- Leaves a trigger that looks at this transaction before it commits, and keeps a claim until it is completed.
-- Returns the claim's name.
create function semel_watch(claimed semel_claimed) returns text language plpgsql volatile as $semel$
declare
    name text := encode((claimed.record).attempt_id, 'hex');
    place tid;
begin
    insert into semel_unfinished (claim, claimed, begun_at) values (name, claimed::text, statement_timestamp())
        returning ctid into place;
    if name is null then
        delete from semel_unfinished u where u.ctid = place;
    end if;
    return name || place::text;
end
$semel$;

create function semel_begin(
    tenant text, operation text, key text, request_hash text default null,
    lease interval default '30 seconds', keep interval default '24 hours', principal text default null,
    out verdict text, out claim text, out operation_id text, out fence bigint, out content_type text,
    out body bytea, out reference text, out retry_after_ms bigint, out error text)
language plpgsql volatile security definer as $semel$
declare
    taken record;
    new semel_record;
begin
    -- The open transaction takes the place of a lease, so there is nothing to renew.
    perform semel_span('lease', lease, 100::bigint, 86400000::bigint);
    taken := semel_take(semel_draft(1, tenant, operation, key, principal, semel_fingerprint(request_hash),
        semel_span('keep', keep, 1::bigint, 9223372036854)));
    verdict := taken.verdict;
    retry_after_ms := taken.retry_after_ms;
    error := taken.error;
    if verdict = 'run' then
        new := (taken.claimed).record;
        claim := semel_watch(taken.claimed);
        operation_id := semel_ulid_text(new.operation_id);
        fence := new.fence;
        perform set_config('semel.claims',
            coalesce(current_setting('semel.claims', true), '') || encode(new.digest, 'hex') || claim || ';', true);
    elsif (taken.existing).digest is not null and verdict <> 'mismatch' then
        operation_id := semel_ulid_text((taken.existing).operation_id);
        if verdict = 'replay' then
            fence := (taken.existing).fence;
            body := (taken.existing).body;
            content_type := (taken.existing).content_type;
            reference := (taken.existing).reference;
        end if;
    end if;
end
$semel$;

create function semel_complete(
    claim text, body bytea default null, content_type text default null, reference text default null)
returns void language plpgsql volatile security definer as $semel$
declare
    claimed semel_claimed := semel_held(claim);
    new semel_record := claimed.record;
begin
    if new.digest is null then
        raise exception using errcode = '40001',
            message = 'semel: the claim is lost, so nothing may be committed: this transaction did not make it, or has completed it',
            hint = 'roll back, and begin again with semel_begin: its verdict says what became of the key';
    end if;
    new.state := 1;
    new.body := coalesce(semel_complete.body, '\x');
    new.content_type := coalesce(semel_complete.content_type,
        case when semel_complete.body is null then 'application/octet-stream' else 'application/json' end);
    new.reference := semel_complete.reference;
    if not (new.content_type ~ '^[!-~]+$' and length(new.content_type) <= 255) then
        perform semel_check_text('content type', new.content_type, 255);
    end if;
    if new.reference is not null then
        perform semel_check_text('reference', new.reference, 128);
    end if;
    if octet_length(new.body) + octet_length(new.content_type) > 1048576 then
        raise exception using errcode = '54000', message = format(
            'semel: the outcome has %s bytes, at most 1048576 are kept; store it elsewhere and keep its address',
            octet_length(new.body) + octet_length(new.content_type));
    end if;
    claimed.record := new;
    if not semel_write(claimed, new.keep_us) then
        raise exception using errcode = '40001',
            message = 'semel: the claim is lost, so nothing may be committed: the key has another record now',
            hint = 'roll back, and begin again with semel_begin: its verdict says what became of the key';
    end if;
    delete from semel_unfinished u where u.ctid = substr(semel_complete.claim, 33)::tid;
    perform set_config('semel.claims', replace(coalesce(current_setting('semel.claims', true), ''),
        encode(new.digest, 'hex') || semel_complete.claim || ';', ''), true);
end
$semel$;

create function semel_fail(
    tenant text, operation text, key text, request_hash text default null, error text default null,
    retry_after_ms bigint default 0, principal text default null, operation_id text default null,
    keep interval default '24 hours')
returns text language plpgsql volatile security definer as $semel$
declare
    taken record;
    claimed semel_claimed;
    new semel_record;
begin
    new := semel_draft(1, tenant, operation, key, principal, semel_fingerprint(request_hash),
        semel_span('keep', keep, 1::bigint, 9223372036854));
    if semel_fail.operation_id is not null then
        new.operation_id := semel_ulid_bytes(semel_fail.operation_id);
        if new.operation_id is null then
            raise exception using errcode = '22023',
                message = 'semel: an operation id is 26 characters of upper-case Crockford base32';
        end if;
    end if;
    if semel_fail.retry_after_ms < 0 then
        raise exception using errcode = '22023',
            message = format('semel: retry_after_ms is %s; it must not be negative', semel_fail.retry_after_ms);
    end if;
    if semel_is_claimed(new.digest) then
        raise exception using errcode = '55000',
            message = 'semel: this transaction still holds the claim that failed',
            hint = 'roll back first, so that the failure is recorded without the work';
    end if;
    taken := semel_take(new);
    if taken.verdict <> 'run' then
        return taken.verdict;
    end if;
    claimed := taken.claimed;
    new := claimed.record;
    new.state := 2;
    new.error := left(coalesce(semel_fail.error, 'the work failed'), 256);
    if semel_fail.retry_after_ms is not null then
        new.retry_at := semel_after(semel_now(), least(semel_fail.retry_after_ms, 9223372036854775) * 1000);
    end if;
    -- What it takes to run the operation again stays with it.
    if new.attempt > 1 then
        new.body := (taken.existing).body;
        new.content_type := (taken.existing).content_type;
        new.reference := (taken.existing).reference;
    end if;
    claimed.record := new;
    return case when semel_write(claimed, new.keep_us) then 'recorded' else 'in_progress' end;
end
$semel$;

create function semel_handle(
    consumer_group text, tenant text, event_id text, type text, source text default null,
    keep interval default '30 days')
returns text language plpgsql volatile security definer as $semel$
declare
    event bytea := semel_ulid_bytes(event_id);
    taken record;
    claimed semel_claimed;
    new semel_record;
begin
    perform semel_check_text('type of an event', type, 128);
    perform semel_check_text('id of an event', event_id, 255);
    if source is not null then
        perform semel_check_text('source of an event', source, 255);
    elsif event is null then
        raise exception using errcode = '22023',
            message = 'semel: the id of this event is no ULID, so it is unique only with its source; pass the source';
    end if;
    event := coalesce(event, substring(sha256(convert_to('semel/foreign-event/1', 'UTF8') || '\x00'::bytea
        || int8send(octet_length(convert_to(source, 'UTF8'))) || convert_to(source, 'UTF8')
        || convert_to(event_id, 'UTF8')) from 1 for 16));
    new := semel_draft(5, tenant, consumer_group, semel_ulid_text(event), null::text, case when source is null then '\x'::bytea
        else '\x03'::bytea || sha256(convert_to(type, 'UTF8') || '\x00'::bytea || convert_to(source, 'UTF8')) end,
        semel_span('keep', keep, 1::bigint, 9223372036854));
    new.reference := type;
    taken := semel_take(new);
    if taken.verdict = 'mismatch' then
        return 'conflict';
    elsif taken.verdict <> 'run' then
        return case taken.verdict when 'replay' then 'done'
            when 'in_progress' then 'in_progress' when 'backoff' then 'in_progress' else 'dead' end;
    end if;
    claimed := taken.claimed;
    new := claimed.record;
    new.state := 1;
    new.body := '\x';
    new.content_type := 'application/octet-stream';
    claimed.record := new;
    if not semel_write(claimed, new.keep_us) then
        return 'in_progress';
    end if;
    perform semel_watch(null::semel_claimed);
    return 'run';
end
$semel$;

create function semel_append(
    tenant text, type text, payload text, aggregate_type text default null, aggregate_id text default null,
    headers text default null, id text default null, source text default '/sql',
    content_type text default 'application/json')
returns text language plpgsql volatile security definer as $semel$
declare
    event text := coalesce(id, semel_ulid_text(semel_ulid()));
    cause text;
begin
    perform semel_check_text('tenant of an event', tenant, 64);
    perform semel_check_text('type of an event', type, 128);
    perform semel_check_text('source of an event', source, 255);
    perform semel_check_text('content type of an event', content_type, 255);
    if (aggregate_type is null) <> (aggregate_id is null) then
        raise exception using errcode = '22023',
            message = 'semel: an event has both aggregate_type and aggregate_id, or neither';
    elsif aggregate_type is not null then
        perform semel_check_text('aggregate type of an event', aggregate_type, 255);
        perform semel_check_text('aggregate id of an event', aggregate_id, 255);
    end if;
    if semel_ulid_bytes(event) is null then
        raise exception using errcode = '22023',
            message = 'semel: the id of an event is 26 characters of upper-case Crockford base32 (a ULID)';
    elsif payload is null or octet_length(payload) > 15728640 then
        raise exception using errcode = '22023', message = format(
            'semel: the payload of an event has at most 15728640 bytes, got %s', coalesce(octet_length(payload)::text, 'null'));
    end if;
    if content_type = 'application/json' then
        perform payload::json;
    end if;
    if headers is not null and (json_typeof(headers::json) <> 'object' or octet_length(headers) > 16384
        or (select count(*) > 64 or bool_or(octet_length(name) > 128 or name !~ '\S' or name ~ '[\u0001-\u001f\u007f-\u009f]')
            from json_object_keys(headers::json) name)) then
        raise exception using errcode = '22023', message =
            'semel: headers are a JSON object of at most 64 members and 16384 bytes, with names of 1 to 128 bytes of visible text';
    end if;
    -- As the library does: what a claim of this transaction appends was caused by its operation.
    cause := semel_ulid_text(((semel_held(
        substring(right(current_setting('semel.claims', true), 64) from '([0-9a-f]{32}\([0-9,]*\));$'))).record).operation_id);
    -- Text that begins as bytes do would be read as those bytes.
    insert into semel_outbox (id, tenant, aggregatetype, aggregateid, type, source, payload, payload_bytes, content_type, headers)
    values (event, tenant, coalesce(aggregate_type, type), aggregate_id, type, source,
        case when left(payload, 2) <> '\x' then payload end,
        case when left(payload, 2) = '\x' then convert_to(payload, 'UTF8') end, content_type,
        json_strip_nulls(json_build_object('correlationid', cause, 'causationid', cause,
            'headersjson', case when headers::jsonb <> '{}' then headers end))::text)
    on conflict do nothing;
    return event;
end
$semel$;

-- The bytes of an internal id: a ULID, or a UUID in any of its spellings.
create function semel_internal_id(internal_id text) returns bytea language plpgsql immutable as $semel$
declare
    bytes bytea := semel_ulid_bytes(internal_id);
begin
    if bytes is null and internal_id ~ '^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$' then
        bytes := uuid_send(internal_id::uuid);
    end if;
    if bytes is null then
        raise exception using errcode = '22023', message = 'semel: an internal id is a ULID (26 characters) or a UUID';
    end if;
    return bytes;
end
$semel$;

create function semel_check_id(tenant text, resource_type text, public_id text) returns void
language plpgsql immutable as $semel$
begin
    perform semel_check_text('tenant of an id', tenant, 64);
    if resource_type is null or resource_type !~ '^[A-Z][A-Z0-9_]{0,31}$' then
        raise exception using errcode = '22023',
            message = 'semel: a resource type is a capital and at most 31 capitals, digits and underscores';
    elsif public_id is null or public_id !~ '^[!-~]{1,64}$' then
        raise exception using errcode = '22023', message = 'semel: a public id has 1 to 64 visible ASCII characters';
    end if;
end
$semel$;

-- True if the ids were bound by this call, false if they were before.
create function semel_register_id(tenant text, resource_type text, public_id text, internal_id text)
returns boolean language plpgsql volatile security definer as $semel$
declare
    internal bytea := semel_internal_id(internal_id);
    us bigint := semel_now();
    written integer;
    bound record;
begin
    perform semel_check_id(tenant, resource_type, public_id);
    insert into semel_id_map (resource_type, tenant, public_id, internal_id, status, created_at, updated_at)
    values (resource_type, tenant, public_id, internal, 1, us, us)
    on conflict do nothing;
    get diagnostics written = row_count;
    if written = 1 then
        return true;
    end if;
    select m.internal_id, m.status into bound from semel_id_map m
        where m.resource_type = semel_register_id.resource_type and m.tenant = semel_register_id.tenant
            and m.public_id = semel_register_id.public_id;
    if bound.internal_id = internal and bound.status = 1 then
        return false;
    end if;
    raise exception using errcode = '23505', message = case when bound.internal_id = internal
        then format('semel: %s was revoked and cannot be registered again; make a new id', public_id)
        else format('semel: %s cannot be registered: it, or its internal id, is bound to something else', public_id) end;
end
$semel$;

-- The internal id as a ULID; null if there is none, or it was revoked.
create function semel_resolve_id(tenant text, resource_type text, public_id text)
returns text language plpgsql stable security definer as $semel$
begin
    perform semel_check_id(tenant, resource_type, public_id);
    return (select semel_ulid_text(m.internal_id) from semel_id_map m
        where m.resource_type = semel_resolve_id.resource_type and m.tenant = semel_resolve_id.tenant
            and m.public_id = semel_resolve_id.public_id and m.status = 1);
end
$semel$;

-- Every function names what is in this schema with the schema, and looks up all other names in the server's
-- catalogue and nowhere else, whatever the caller's search_path. What it passes to functions of this schema has
-- their exact types, so that it calls no other that somebody creates here with the same name. It may be called by
-- its owner only until it is granted.
do $semel$
declare
    f record;
    home text := quote_ident(current_schema());
begin
    for f in
        select p.oid, p.oid::regprocedure as name, p.prosecdef as is_entry, p.prosrc as source,
            regexp_replace(p.prosrc, '(?<![\w."''])(semel_(?:record|claimed|outbox|id_map|unfinished)\M|semel_\w+(?=\())',
                replace(home, '\', '\\') || '.\1', 'g') as qualified
        from pg_proc p
        where p.pronamespace = home::regnamespace and p.proname in (
            'semel_after', 'semel_append', 'semel_begin', 'semel_check_id', 'semel_check_text', 'semel_complete',
            'semel_digest', 'semel_draft', 'semel_fail', 'semel_fingerprint', 'semel_handle', 'semel_held',
            'semel_internal_id', 'semel_is_claimed', 'semel_judge', 'semel_lock_key', 'semel_now',
            'semel_refuse_unfinished', 'semel_register_id', 'semel_resolve_id', 'semel_span', 'semel_take', 'semel_ulid',
            'semel_ulid_bytes', 'semel_ulid_text', 'semel_watch', 'semel_write')
    loop
        execute replace(pg_get_functiondef(f.oid), f.source, f.qualified);
        execute format('revoke all on function %s from public', f.name);
        if f.is_entry then
            execute format('alter function %s set search_path = pg_catalog, pg_temp', f.name);
            -- Their texts have backslashes.
            execute format('alter function %s set standard_conforming_strings = on', f.name);
        end if;
    end loop;
end
$semel$;
