//! Device models: no KVM, no HTTP, no tokio
