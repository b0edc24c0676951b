-- Invariant: only the live grant's record is locked, and only by a transaction that has one
-- snapshot for all its statements: such a transaction could not write a record that was renewed
-- after its snapshot. A row that another transaction has locked is not waited for. Returns 0 if no
-- lock is needed, 1 if the record is locked, 2 if the record still belongs to this grant but
-- another transaction has it locked, null if the claim is lost.
with level as materialized (
    select current_setting('transaction_isolation') in ('repeatable read', 'serializable') as fixed
),
held as materialized (
    select r.digest from semel_record r
    where r.digest = $1 and (select l.fixed from level l)
        and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    for update skip locked
)
select case
    when not (select l.fixed from level l) then 0
    when exists (select from held) then 1
    when exists (
        select from semel_record r
        where r.digest = $1
            and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    ) then 2
end as held
