-- Invariant: only the judged version is removed. A row that another transaction has locked counts
-- as lost and is not waited for: that transaction may take as long as its work.
with held as materialized (
    select r.digest from semel_record r
    where r.digest = $1
        and r.attempt_id = $2 and r.number = $3 -- guard: version
    for update skip locked
)
delete from semel_record r using held h
where r.digest = h.digest
returning r.fence
