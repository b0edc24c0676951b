//! Converts a row of a business table to a binding, or returns the reason why it has none.

use std::fmt;

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::business::{BusinessRow, Field};
use crate::codec::{Codec, InvalidId};
use crate::map::{Binding, InvalidBinding};
use crate::resource::ResourceType;

/// The reason why a row cannot be written to the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalReason {
    /// The row has no tenant.
    NoTenant,
    /// The tenant is not valid: blank, too long, or with control characters.
    BadTenant,
    /// The row has no public id.
    NoPublicId,
    /// The public id is not a text that the codec writes.
    BadPublicId,
    /// The public id has the prefix of another resource type.
    ForeignPrefix,
    /// The row has no internal id.
    NoInternalId,
    /// The internal id is neither 16 bytes nor the text of a ULID.
    BadInternalId,
    /// The public id encodes another internal id than the one in the row.
    OtherInternalId,
    /// A column has a value of an unexpected type.
    Unreadable,
    /// The row has no key, so no page contains it.
    NoKey,
    /// The mapping exists and is revoked.
    Revoked,
    /// The public or the internal id is bound to another id.
    Conflict,
}

impl RefusalReason {
    /// Returns the reason as text.
    pub const fn words(self) -> &'static str {
        match self {
            RefusalReason::NoTenant => "no tenant",
            RefusalReason::BadTenant => "not a tenant",
            RefusalReason::NoPublicId => "no public id",
            RefusalReason::BadPublicId => "not a public id",
            RefusalReason::ForeignPrefix => "public id of another type",
            RefusalReason::NoInternalId => "no internal id",
            RefusalReason::BadInternalId => "not an internal id",
            RefusalReason::OtherInternalId => "public id of another internal id",
            RefusalReason::Unreadable => "unreadable",
            RefusalReason::NoKey => "no key",
            RefusalReason::Revoked => "revoked in the map",
            RefusalReason::Conflict => "in conflict with the map",
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Returns the binding of a row, or the reason why the row has none.
pub(super) fn read(
    row: &BusinessRow,
    kind: ResourceType,
    codec: &Codec,
) -> Result<Binding, RefusalReason> {
    let tenant = field(&row.tenant, RefusalReason::NoTenant)?;
    let public = field(&row.public, RefusalReason::NoPublicId)?;
    let internal = internal(field(&row.internal, RefusalReason::NoInternalId)?)?;
    Binding::checked(tenant, kind, codec, public, internal).map_err(|invalid| match invalid {
        InvalidBinding::Tenant(_) => RefusalReason::BadTenant,
        InvalidBinding::Public(InvalidId::Format(_)) => RefusalReason::BadPublicId,
        InvalidBinding::Public(InvalidId::Prefix { .. }) => RefusalReason::ForeignPrefix,
        InvalidBinding::Internal => RefusalReason::OtherInternalId,
    })
}

fn field<T>(field: &Field<T>, none: RefusalReason) -> Result<&T, RefusalReason> {
    match field {
        Field::Value(value) => Ok(value),
        Field::Null => Err(none),
        Field::Unreadable => Err(RefusalReason::Unreadable),
    }
}

fn internal(bytes: &[u8]) -> Result<Ulid, RefusalReason> {
    if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
        return Ok(Ulid::from_bytes(bytes));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| RefusalReason::BadInternalId)?;
    // Tables may have ULIDs of either case; the codec accepts only lower case.
    let decoded = Codec::new().decode(&format!("id_{}", text.to_ascii_lowercase()));
    decoded.map(|(_, id)| id).map_err(|_| RefusalReason::BadInternalId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Order, Resource};

    const TEXT: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

    fn row(tenant: &str, public: &str, internal: &[u8]) -> BusinessRow {
        BusinessRow {
            key: String::from("1"),
            tenant: Field::Value(tenant.to_owned()),
            public: Field::Value(public.to_owned()),
            internal: Field::Value(internal.to_vec()),
        }
    }

    fn reason(row: &BusinessRow) -> Option<RefusalReason> {
        read(row, Order::TYPE, Order::codec()).err()
    }

    #[test]
    fn an_internal_id_is_sixteen_bytes_or_the_text_of_a_ulid() {
        let id = internal(TEXT.as_bytes()).expect("a ULID");
        let public = "ord_01arz3ndektsv4rrffq69g5fav";
        for spelling in [TEXT.as_bytes(), TEXT.to_lowercase().as_bytes(), &id.to_bytes()] {
            assert_eq!(reason(&row("acme", public, spelling)), None, "{spelling:?}");
        }
        let overflow = "8ZZZZZZZZZZZZZZZZZZZZZZZZZ".as_bytes();
        for wrong in [&b""[..], &b"short"[..], overflow, &[0xff; 26], &[0; 17]] {
            assert_eq!(reason(&row("acme", public, wrong)), Some(RefusalReason::BadInternalId));
        }
    }

    #[test]
    fn every_defect_of_a_row_has_its_reason() {
        let public = "ord_01arz3ndektsv4rrffq69g5fav";
        let right = row("acme", public, TEXT.as_bytes());
        let with = |change: &dyn Fn(&mut BusinessRow)| {
            let mut row = right.clone();
            change(&mut row);
            reason(&row)
        };
        assert_eq!(reason(&right), None);
        assert_eq!(with(&|row| row.tenant = Field::Null), Some(RefusalReason::NoTenant));
        assert_eq!(with(&|row| row.public = Field::Null), Some(RefusalReason::NoPublicId));
        assert_eq!(with(&|row| row.internal = Field::Null), Some(RefusalReason::NoInternalId));
        assert_eq!(with(&|row| row.public = Field::Unreadable), Some(RefusalReason::Unreadable));
        let text = |text: &str| Field::Value(text.to_owned());
        assert_eq!(with(&|row| row.tenant = text(" ")), Some(RefusalReason::BadTenant));
        assert_eq!(with(&|row| row.public = text("ord_x")), Some(RefusalReason::BadPublicId));
        let user = public.replace("ord", "usr");
        assert_eq!(with(&|row| row.public = text(&user)), Some(RefusalReason::ForeignPrefix));
        let other = public.replace("fav", "faw");
        assert_eq!(with(&|row| row.public = text(&other)), Some(RefusalReason::OtherInternalId));
    }
}
