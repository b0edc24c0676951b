//! What a role that may only call the functions cannot bring about with them.

use super::PgSession;
use super::rights::application;
use crate::database::Database;
use crate::session::{Ask, Session as _};

#[tokio::test]
async fn a_claim_cannot_be_forged_by_the_settings_of_the_transaction() {
    let database = Database::new().await;
    let mut owner = PgSession::open(&database).await;
    let mut app = application(&database, &mut owner, "semel_forger").await;
    app.run("begin").await.expect("begun");
    let claim = app.begin(&Ask::of("k")).await.expect("begun").claim.expect("a claim");
    // Whatever the setting says, the record is that of the key that was claimed.
    let forge = "select set_config('semel.claims', replace(replace(
        current_setting('semel.claims'), 'acme', 'victim'), 'CREATE_ORDER', 'PAY'), true)";
    app.run(forge).await.expect("set");
    app.complete(&claim, b"1").await.expect("completed");
    app.run("commit").await.expect("committed");
    let records = "select tenant, scope from semel_record";
    assert_eq!(owner.pairs(records).await, [("acme".into(), "CREATE_ORDER".into())]);
    // And who forgets the settings has the claim still.
    app.run("begin").await.expect("begun");
    let claim = app.begin(&Ask::of("l")).await.expect("begun").claim.expect("a claim");
    app.run("select set_config('semel.claims', '{}', true)").await.expect("set");
    app.complete(&claim, b"1").await.expect("completed");
    app.run("commit").await.expect("committed");
    owner.run("drop owned by semel_forger").await.expect("dropped");
}

#[tokio::test]
async fn a_claim_of_another_transaction_or_of_nobody_completes_nothing() {
    let database = Database::new().await;
    let mut holder = PgSession::open(&database).await;
    let mut rival = PgSession::open(&database).await;
    holder.run("begin").await.expect("begun");
    let claim = holder.begin(&Ask::of("k")).await.expect("begun").claim.expect("a claim");
    let place = claim.split_once('(').map_or("", |(_, place)| place);
    let others = format!("{}({place}", "0".repeat(32));
    for named in
        [&claim, &others, "", "x", &claim[..32], &format!("{}(999999999,9999)", &claim[..32])]
    {
        rival.run("begin").await.expect("begun");
        let refusal = rival.complete(named, b"1").await.expect_err("not its claim");
        assert_eq!(refusal.state, "40001", "{named}: {refusal:?}");
        rival.run("rollback").await.expect("rolled back");
    }
    holder.complete(&claim, b"1").await.expect("completed");
    holder.run("commit").await.expect("committed");
}

#[tokio::test]
async fn functions_that_others_create_in_the_schema_are_not_called() {
    let database = Database::new().await;
    let mut owner = PgSession::open(&database).await;
    let mut app = application(&database, &mut owner, "semel_trapper").await;
    let prepare = "create table trap (who text); grant insert on trap to public;
        grant create on schema public to semel_trapper";
    owner.run(prepare).await.expect("prepared");
    // Better matches for calls in the functions than what the functions mean.
    for (signature, result, answer) in [
        ("semel_span(text, interval, integer, bigint)", "bigint", "1000000"),
        ("semel_span(text, interval, integer, integer)", "bigint", "1000000"),
        ("semel_watch(text)", "text", "''"),
        ("semel_check_text(text, text, bigint)", "void", ""),
        ("concat(text, text)", "text", "''"),
        ("format(text, text)", "text", "''"),
        ("format(text, text, text)", "text", "''"),
        ("array_append(semel_claimed[], semel_claimed)", "semel_claimed[]", "null"),
        ("cardinality(semel_claimed[])", "integer", "0"),
        ("trap_join(text, integer)", "text", "''"),
    ] {
        let create = format!(
            "create function public.{signature} returns {result} language plpgsql as
            $$ begin insert into public.trap values (current_user); return {answer}; end $$"
        );
        app.run(&create).await.expect(&create);
    }
    let operator =
        "create operator public.|| (leftarg = text, rightarg = integer, function = trap_join)";
    app.run(operator).await.expect("created");
    app.run("begin").await.expect("begun");
    let claim = app.begin(&Ask::of("k")).await.expect("begun").claim.expect("a claim");
    app.run("select semel_append('acme', 'order.placed', '1')").await.expect("appended");
    app.complete(&claim, b"1").await.expect("completed");
    app.run("commit").await.expect("committed");
    app.fail(&Ask::of("l"), "no", Some(0)).await.expect("failed");
    let handle = "begin; select semel_handle('G', 'acme', '4711', 'paid', '/erp')";
    app.run(handle).await.expect("handled");
    app.run("commit").await.expect("committed");
    let register =
        "select semel_register_id('acme', 'ORDER', 'ord_1', '01ARZ3NDEKTSV4RRFFQ69G5FAV')";
    app.run(register).await.expect("registered");
    app.run("select semel_resolve_id('acme', 'ORDER', 'ord_1')").await.expect("resolved");
    app.run("begin; select semel_begin('acme', 'CREATE_ORDER', '')").await.expect_err("blank");
    app.run("rollback").await.expect("rolled back");
    assert_eq!(owner.pairs("select who, '' from trap").await, []);
    owner.run("drop owned by semel_trapper cascade").await.expect("dropped");
}

#[tokio::test]
async fn functions_read_their_texts_alike_in_every_session() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    session.run("set standard_conforming_strings = off").await.expect("set");
    session.run("begin").await.expect("begun");
    let claim = session.begin(&Ask::of("k")).await.expect("begun").claim.expect("a claim");
    session.complete(&claim, b"1").await.expect("completed");
    session.run("commit").await.expect("committed");
}

#[tokio::test]
async fn an_event_whose_record_has_expired_is_another_event() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    let handle = async |session: &mut PgSession, kind: &str| {
        session.run("begin").await.expect("begun");
        let call =
            format!("select semel_handle('G', 'acme', '01ARZ3NDEKTSV4RRFFQ69G5FAV', '{kind}'), ''");
        let verdict = session.pairs(&call).await.remove(0).0;
        session.run("commit").await.expect("committed");
        verdict
    };
    assert_eq!(handle(&mut session, "order.placed").await, "run");
    assert_eq!(handle(&mut session, "order.paid").await, "conflict");
    // An attempt of the library's that crashed: the conflict is told before anything is written.
    let crashed =
        "update semel_record set state = 0, lease_until = 1, on_crash = 1, completed_at = null";
    session.run(crashed).await.expect("changed");
    assert_eq!(handle(&mut session, "order.paid").await, "conflict");
    let states = "select state::text, reference from semel_record";
    assert_eq!(session.pairs(states).await, [("0".into(), "order.placed".into())]);
    session.run("update semel_record set state = 1, expires_at = 1").await.expect("changed");
    assert_eq!(handle(&mut session, "order.paid").await, "run");
}

#[tokio::test]
async fn constraints_that_are_checked_at_once_are_named_as_the_reason() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    session.run("begin; set constraints all immediate").await.expect("set");
    let refusal = session.begin(&Ask::of("k")).await.expect_err("refused");
    assert_eq!(refusal.state, "25P01", "{refusal:?}");
    assert!(refusal.words.contains("SET CONSTRAINTS"), "{refusal:?}");
}
