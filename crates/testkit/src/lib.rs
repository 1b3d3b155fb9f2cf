//! Conformance suite, tiny guests and fault injection for tests
