//! Identity of keys: keys are equal if their five parts are equal byte for byte, and only then.

use semel_core::store::{Draft, Filter, Opened};
use semel_core::{Key, Kind, Principal};

use super::test_store::{TestStore, answer, assert_granted, draft, key, success};
use crate::fixture::Fixture;

impl<F: Fixture> TestStore<F> {
    /// Claims every key, then checks that each has its own record, lease and outcome, and that each
    /// is listed under its own parts.
    async fn keeps_apart(&self, keys: &[Key]) {
        let mut claims: Vec<(Draft, semel_core::Lease)> = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let mine = draft(key);
            match self.open(&mine).await {
                Opened::Inserted { fence } => {
                    claims.push((mine.clone(), super::test_store::lease(&mine, fence)));
                }
                Opened::Existing { record, .. } => {
                    let with = claims.iter().position(|(d, _)| d.attempt_id == record.attempt_id);
                    panic!("key {at} of the list was merged with key {with:?}");
                }
                Opened::Contended => unreachable!("opening asks again while contended"),
            }
        }
        for (mine, held) in &claims {
            assert_granted(&self.record(&mine.key).await, mine, held.fence);
        }
        let (first, held) = &claims[0];
        self.end(held, &success("\"mine\"")).await;
        assert_eq!(self.record(&first.key).await.outcome, Some(answer("\"mine\"")));
        for (other, held) in &claims[1..] {
            assert_granted(&self.record(&other.key).await, other, held.fence);
        }
        let listed = self.list(&Filter::default(), 100).await;
        for key in keys {
            let same: Vec<_> = listed.iter().filter(|entry| entry.key == *key).collect();
            assert!(!same.is_empty(), "{key:?} is not listed under its own name");
            assert!(same.iter().all(|entry| {
                let Key { .. } = &entry.key;
                (entry.key.id(), entry.key.tenant(), entry.key.scope(), entry.key.kind())
                    == (key.id(), key.tenant(), key.scope(), key.kind())
                    && entry.key.principal() == key.principal()
            }));
        }
    }

    async fn keeps_ids_apart(&self, ids: &[&str]) {
        let keys: Vec<Key> = ids.iter().map(|id| key(id)).collect();
        self.keeps_apart(&keys).await;
    }
}

/// Keys that differ in case are different.
pub async fn keys_that_differ_in_case_are_two_keys<F: Fixture>(fixture: F) {
    let ids = ["ABC", "abc", "Abc", "straße", "STRASSE", "strasse", "İ", "i", "ı"];
    TestStore::set(fixture).await.keeps_ids_apart(&ids).await;
}

/// White space at the end, at the start and inside is part of a key.
pub async fn keys_that_differ_in_spaces_are_separate_keys<F: Fixture>(fixture: F) {
    let ids = ["abc", "abc ", "abc  ", " abc", "a bc", "abc\u{a0}", "abc\u{3000}"];
    TestStore::set(fixture).await.keeps_ids_apart(&ids).await;
}

/// Accents are part of a key, and so is their Unicode form.
pub async fn keys_that_differ_in_accents_or_their_form_are_separate_keys<F: Fixture>(fixture: F) {
    let ids =
        ["resume", "résumé", "re\u{301}sume\u{301}", "\u{212b}", "\u{c5}", "A\u{30a}", "ﬁ", "fi"];
    TestStore::set(fixture).await.keeps_ids_apart(&ids).await;
}

/// Different emoji make different keys, and so do invisible characters.
pub async fn keys_of_emoji_and_invisible_characters_are_separate_keys<F: Fixture>(fixture: F) {
    let ids =
        ["😀", "😁", "😀😀", "abc", "abc\u{200b}", "abc\u{200d}", "\u{feff}abc", "❤", "❤\u{fe0f}"];
    TestStore::set(fixture).await.keeps_ids_apart(&ids).await;
}

/// Characters that a backend may read as syntax have no special meaning in a key.
pub async fn keys_of_syntax_are_ordinary_keys<F: Fixture>(fixture: F) {
    let ids = [
        "{}",
        "{a}",
        "{",
        "}",
        "a{b}c",
        "%",
        "_",
        "a%",
        "a_",
        "*",
        "?",
        "[a]",
        "'",
        "\"",
        "`",
        "\\",
        "a:b",
        "a:",
        ":b",
        "'; DROP TABLE semel_record; --",
        "$1",
        ":1",
        "?1",
        "NULL",
        "0",
        "00",
    ];
    TestStore::set(fixture).await.keeps_ids_apart(&ids).await;
}

/// Right-to-left text and its control characters are part of a key.
pub async fn keys_of_right_to_left_text_are_separate_keys<F: Fixture>(fixture: F) {
    let ids = ["שלום", "שָׁלוֹם", "\u{202e}abc", "abc", "مرحبا", "مرحبا\u{200f}", "cba"];
    TestStore::set(fixture).await.keeps_ids_apart(&ids).await;
}

/// Keys of the maximum length that differ in their last byte are different.
pub async fn keys_of_full_length_differ_in_their_last_byte<F: Fixture>(fixture: F) {
    let id =
        |last: char| format!("{}{last}", "x".repeat(semel_core::key::MAX_ID - last.len_utf8()));
    let scope = |last: char| format!("{}{last}", "s".repeat(semel_core::key::MAX_SCOPE - 1));
    let tenant = |last: char| format!("{}{last}", "t".repeat(semel_core::key::MAX_TENANT - 1));
    let full = |t: char, s: char, i: char| {
        Key::command(&tenant(t), &scope(s), &id(i)).expect("of just the right length")
    };
    let wide = "😀".repeat(semel_core::key::MAX_ID / 4);
    let keys = [
        full('a', 'a', 'a'),
        full('a', 'a', 'b'),
        full('a', 'b', 'a'),
        full('b', 'a', 'a'),
        full('a', 'a', '😀'),
        full('a', 'a', '😁'),
        Key::command(&"😀".repeat(16), &"😀".repeat(32), &wide).expect("63 emoji are 252 bytes"),
        Key::command(&"😀".repeat(16), &"😀".repeat(32), &format!("{wide}abc")).expect("255"),
    ];
    TestStore::set(fixture).await.keeps_apart(&keys).await;
}

/// The same id under another tenant or scope is another key, however the parts are split.
pub async fn tenants_and_scopes_do_not_meet<F: Fixture>(fixture: F) {
    let of = |tenant, scope, id| Key::command(tenant, scope, id).expect("valid");
    let keys = [
        of("a", "b", "c"),
        of("A", "b", "c"),
        of("a ", "b", "c"),
        of("a", "B", "c"),
        of("a", "b ", "c"),
        of("ab", "c", "c"),
        of("a", "bc", "c"),
        of("a", "b", "bc"),
        of("a:b", "c", "c"),
        of("a", "b:c", "c"),
        of("ä", "b", "c"),
    ];
    TestStore::set(fixture).await.keeps_apart(&keys).await;
}

/// Two principals with the same id have different records, and neither is the shared one.
pub async fn principals_do_not_meet<F: Fixture>(fixture: F) {
    let base = key("k");
    let by = |who: &str| base.clone().with_principal(Principal::of(who));
    let keys = [base.clone(), by(""), by("user-1"), by("user-2"), by("User-1"), by("user-1 ")];
    TestStore::set(fixture).await.keeps_apart(&keys).await;
}

/// The same id with two kinds of key is two keys.
pub async fn kinds_do_not_meet<F: Fixture>(fixture: F) {
    let kinds = [Kind::Command, Kind::Http, Kind::Grpc, Kind::Message, Kind::Event];
    let keys = kinds.map(|kind| {
        Key::new(kind, "acme", "ORDER_CREATE", Principal::global(), "k").expect("valid")
    });
    TestStore::set(fixture).await.keeps_apart(&keys).await;
}

/// Equal parts make the same key, however it was constructed.
pub async fn equal_parts_are_one_key<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for id in ["abc ", "résumé", "😀", "{}"] {
        let mine = draft(&key(id));
        let held = test.claim(&mine).await;
        let same = Key::new(Kind::Command, "acme", "ORDER_CREATE", Principal::global(), id);
        let (record, _) = test.existing(&draft(&same.expect("valid"))).await;
        assert_granted(&record, &mine, held.fence);
    }
}
