//! The SDKs of other languages against this workspace: what their suites need of it.
