-- Invariant: of all transactions that record a key, the primary key lets one insert: if another
-- transaction has committed a record meanwhile, this insert fails, and with it the commit that
-- follows. Nothing is written outside the transaction that hold_key.sql marked, nor into another
-- table than the one it found: without the mark the digest is null, which the column refuses. The
-- record is written once, when it is finished; the claim began when its fence was read.
insert into semel_record ({key}, {record}, sweep_at)
select
    case when current_setting('semel.claim', true)
        = encode($1::bytea, 'hex') || '@' || 'semel_record'::regclass::oid::text
        then $1::bytea
    end,
    $2::smallint, $3::text, $4::text, $5::bytea, $6::text,
    1, $7::bytea, $8::smallint, $9::bytea, $10::bytea, $11::integer, $12::bigint, $13::text,
    null::bigint, c.us + case when $14::bigint > c.room then c.room else $14::bigint end,
    $15::smallint, $16::bigint, $17::bytea, $18::text, $19::text, $20::bigint, $21::text,
    $12::bigint, c.us, c.us,
    c.us + case when $22::bigint > c.room then c.room else $22::bigint end,
    c.us + case when $22::bigint > c.room then c.room else $22::bigint end
from (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us offset 0) t
) c
