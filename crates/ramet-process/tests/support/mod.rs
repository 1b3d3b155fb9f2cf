//! Shared by the tests of the system call filters.

pub(crate) mod interpreter;
pub(crate) mod linear;
