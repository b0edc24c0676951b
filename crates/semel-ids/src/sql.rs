//! Reads and writes ids in SQL columns: typed ids as 16 bytes, public ids as text.
//!
//! A text column is not read as a typed id, even if it has 16 characters. A [`PublicId`] can be
//! written but not read, because only its codec can validate it: read a `String` and parse it, or
//! store the bytes and display them as a [`TypedId`].

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Type, TypeInfo as _};
use ulid::Ulid;

use crate::codec::PublicId;
use crate::resource::Resource;
use crate::typed::TypedId;

/// The names of binary column types in the databases.
const BINARY: [&str; 7] =
    ["BYTEA", "BLOB", "BINARY", "VARBINARY", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB"];

impl<R: Resource, DB: Database> Type<DB> for TypedId<R>
where
    Vec<u8>: Type<DB>,
{
    fn type_info() -> DB::TypeInfo {
        Vec::<u8>::type_info()
    }

    fn compatible(column: &DB::TypeInfo) -> bool {
        Vec::<u8>::compatible(column) && BINARY.contains(&column.name())
    }
}

impl<'q, R: Resource, DB: Database> Encode<'q, DB> for TypedId<R>
where
    Vec<u8>: Encode<'q, DB>,
{
    fn encode_by_ref(&self, buffer: &mut DB::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.to_bytes().to_vec().encode(buffer)
    }

    fn size_hint(&self) -> usize {
        16
    }
}

impl<'r, R: Resource, DB: Database> Decode<'r, DB> for TypedId<R>
where
    Vec<u8>: Decode<'r, DB>,
{
    fn decode(value: DB::ValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = Vec::<u8>::decode(value)?;
        let id: [u8; 16] = bytes.as_slice().try_into().map_err(|_| {
            format!(
                "an id has 16 bytes, but the column has {}; check that it is a column of ids",
                bytes.len()
            )
        })?;
        Ok(Self::new(Ulid::from_bytes(id)))
    }
}

impl<DB: Database> Type<DB> for PublicId
where
    String: Type<DB>,
{
    fn type_info() -> DB::TypeInfo {
        String::type_info()
    }

    fn compatible(column: &DB::TypeInfo) -> bool {
        String::compatible(column)
    }
}

impl<'q, DB: Database> Encode<'q, DB> for PublicId
where
    String: Encode<'q, DB>,
{
    fn encode_by_ref(&self, buffer: &mut DB::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.as_str().to_owned().encode(buffer)
    }

    fn size_hint(&self) -> usize {
        self.len()
    }
}

/// Implements arrays of ids, for `WHERE id = ANY($1)`.
#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::postgres::{PgHasArrayType, PgTypeInfo};

    use super::{PublicId, Resource, TypedId};

    impl<R: Resource> PgHasArrayType for TypedId<R> {
        fn array_type_info() -> PgTypeInfo {
            Vec::<u8>::array_type_info()
        }
    }

    impl PgHasArrayType for PublicId {
        fn array_type_info() -> PgTypeInfo {
            String::array_type_info()
        }
    }
}
