//! The methods that a layer covers: methods that were registered, and the unary methods of a
//! descriptor set.
//!
//! Any other method passes through: the headers of a call do not show whether it is unary, and a
//! stream must not be read to its end before it is passed on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message as _;
use prost_types::method_options::IdempotencyLevel;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};

use super::rules::GrpcRules;

/// The methods that a layer covers.
#[derive(Clone, Debug, Default)]
pub struct Methods {
    /// The rules of each unary method; `None` stands for the layer's default rules.
    unary: HashMap<Box<str>, Option<Arc<GrpcRules>>>,
    streaming: HashSet<Box<str>>,
}

/// The reason why a descriptor set was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDescriptorSet {
    /// The bytes are not an encoded `google.protobuf.FileDescriptorSet`.
    #[error("the descriptor set cannot be read: {reason}")]
    Unreadable {
        /// The error of `prost`.
        reason: String,
    },
    /// The set has no unary method: it is empty, or its files have no services.
    #[error("the descriptor set has no unary method; give the set of the files with the services")]
    NoMethods,
    /// A method that was registered as unary is a streaming one.
    #[error("{method} was registered as unary, but is a streaming method in the descriptor set")]
    Streaming {
        /// The path of the method.
        method: String,
    },
    /// The descriptor set has the service of a registered method, but not the method.
    #[error("{method} was registered, but its service in the descriptor set has no such method")]
    Unknown {
        /// The path of the method.
        method: String,
    },
}

/// Returns the path of a method: `/package.Service/Method`.
fn path(method: &str) -> Box<str> {
    match method.strip_prefix('/') {
        Some(_) => method.into(),
        None => format!("/{method}").into(),
    }
}

impl Methods {
    /// Registers a method as unary, unless a descriptor set has it as a streaming method.
    pub(super) fn name(&mut self, method: &str, rules: GrpcRules) {
        let path = path(method);
        if self.streaming.contains(&path) {
            tracing::error!(method = %path, "a streaming method was registered as unary; the layer does not cover it");
            return;
        }
        if path.matches('/').count() != 2 || path.ends_with('/') {
            tracing::warn!(method = %path, "no call has this path: write `/package.Service/Method`");
        }
        self.unary.insert(path, Some(Arc::new(rules)));
    }

    /// Adds the unary methods of a descriptor set, and checks the methods that were registered
    /// before against the set.
    pub(super) fn describe(&mut self, encoded: &[u8]) -> Result<(), InvalidDescriptorSet> {
        let set = FileDescriptorSet::decode(encoded)
            .map_err(|error| InvalidDescriptorSet::Unreadable { reason: error.to_string() })?;
        let mut described = Described::default();
        for file in &set.file {
            let package = file.package.as_deref().unwrap_or_default();
            for service in &file.service {
                let dot = if package.is_empty() { "" } else { "." };
                let service_path = format!("/{package}{dot}{}/", service.name());
                for method in &service.method {
                    described.add(&service_path, method);
                }
                described.services.insert(service_path.into());
            }
        }
        self.agree_with(&described)?;
        if described.unary.is_empty() {
            return Err(InvalidDescriptorSet::NoMethods);
        }
        for path in described.unary {
            self.unary.entry(path).or_insert(None);
        }
        self.streaming.extend(described.streaming);
        Ok(())
    }

    fn agree_with(&self, described: &Described) -> Result<(), InvalidDescriptorSet> {
        for path in self.unary.keys() {
            let method = path.to_string();
            if described.streaming.contains(path) {
                return Err(InvalidDescriptorSet::Streaming { method });
            }
            let service = path.rfind('/').map_or("", |slash| &path[..=slash]);
            let known = described.unary.contains(path) || described.harmless.contains(path);
            if described.services.contains(service) && !known {
                return Err(InvalidDescriptorSet::Unknown { method });
            }
        }
        Ok(())
    }

    /// Returns the rules of the method with this path; `None` if the layer does not cover it.
    pub(super) fn rules<'r>(
        &'r self,
        path: &str,
        default: &'r Arc<GrpcRules>,
    ) -> Option<&'r Arc<GrpcRules>> {
        self.unary.get(path).map(|own| own.as_ref().unwrap_or(default))
    }
}

/// The methods of a descriptor set.
#[derive(Default)]
struct Described {
    services: HashSet<Box<str>>,
    unary: HashSet<Box<str>>,
    streaming: HashSet<Box<str>>,
    /// Unary methods with `option idempotency_level = NO_SIDE_EFFECTS`.
    harmless: HashSet<Box<str>>,
}

impl Described {
    fn add(&mut self, service: &str, method: &MethodDescriptorProto) {
        let path = format!("{service}{}", method.name()).into();
        let level = method.options.as_ref().map(|options| options.idempotency_level());
        let kind = if method.client_streaming() || method.server_streaming() {
            &mut self.streaming
        } else if level == Some(IdempotencyLevel::NoSideEffects) {
            &mut self.harmless
        } else {
            &mut self.unary
        };
        kind.insert(path);
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{FileDescriptorProto, MethodOptions, ServiceDescriptorProto};

    use super::*;

    fn method(name: &str, client: bool, server: bool, level: i32) -> MethodDescriptorProto {
        MethodDescriptorProto {
            name: Some(name.to_owned()),
            client_streaming: Some(client),
            server_streaming: Some(server),
            options: Some(MethodOptions { idempotency_level: Some(level), ..Default::default() }),
            ..Default::default()
        }
    }

    fn encoded(package: Option<&str>) -> Vec<u8> {
        let unknown = IdempotencyLevel::IdempotencyUnknown as i32;
        let service = ServiceDescriptorProto {
            name: Some("Payments".to_owned()),
            method: vec![
                method("Charge", false, false, unknown),
                method("Show", false, false, IdempotencyLevel::NoSideEffects as i32),
                method("Watch", false, true, unknown),
                method("Load", true, false, unknown),
                method("Talk", true, true, unknown),
            ],
            ..Default::default()
        };
        let file = FileDescriptorProto {
            package: package.map(str::to_owned),
            service: vec![service],
            ..Default::default()
        };
        FileDescriptorSet { file: vec![file] }.encode_to_vec()
    }

    fn has(methods: &Methods, path: &str) -> bool {
        methods.rules(path, &Arc::default()).is_some()
    }

    #[test]
    fn a_set_registers_its_unary_methods_with_side_effects() {
        let mut methods = Methods::default();
        methods.describe(&encoded(Some("shop.v1"))).expect("a set");
        assert!(has(&methods, "/shop.v1.Payments/Charge"));
        for other in ["Show", "Watch", "Load", "Talk", "Else"] {
            assert!(!has(&methods, &format!("/shop.v1.Payments/{other}")), "{other}");
        }
        let mut methods = Methods::default();
        methods.describe(&encoded(None)).expect("a set");
        assert!(has(&methods, "/Payments/Charge"));
    }

    #[test]
    fn a_method_with_its_own_rules_keeps_them() {
        let mut methods = Methods::default();
        methods.name("shop.v1.Payments/Charge", GrpcRules::new().required());
        methods.describe(&encoded(Some("shop.v1"))).expect("a set");
        let default = Arc::default();
        let rules = methods.rules("/shop.v1.Payments/Charge", &default).expect("registered");
        assert!(rules.required);
    }

    #[test]
    fn a_descriptor_set_reveals_wrong_registrations() {
        let described_after = |method: &str| {
            let mut methods = Methods::default();
            methods.name(method, GrpcRules::new());
            methods.describe(&encoded(Some("shop.v1")))
        };
        let method = "/shop.v1.Payments/Watch".to_owned();
        let streaming = InvalidDescriptorSet::Streaming { method };
        assert_eq!(described_after("/shop.v1.Payments/Watch"), Err(streaming));
        let method = "/shop.v1.Payments/Chrage".to_owned();
        let unknown = InvalidDescriptorSet::Unknown { method };
        assert_eq!(described_after("/shop.v1.Payments/Chrage"), Err(unknown));
        assert_eq!(described_after("/shop.v1.Payments/Show"), Ok(()));
        assert_eq!(described_after("/shop.v1.Refunds/Refund"), Ok(()));
    }

    #[test]
    fn a_streaming_method_of_a_set_cannot_be_registered() {
        let mut methods = Methods::default();
        methods.describe(&encoded(Some("shop.v1"))).expect("a set");
        methods.name("/shop.v1.Payments/Watch", GrpcRules::new());
        assert!(!has(&methods, "/shop.v1.Payments/Watch"));
    }

    #[test]
    fn bytes_that_are_no_set_of_services_are_refused() {
        let mut methods = Methods::default();
        assert_eq!(methods.describe(b""), Err(InvalidDescriptorSet::NoMethods));
        let unreadable = methods.describe(b"\xff\xff\xff");
        assert!(matches!(unreadable, Err(InvalidDescriptorSet::Unreadable { .. })));
    }
}
