//! Reading a request and writing its answer, in the clone page itself.

use crate::runtime::clone_page::ClonePage;

/// Longest request that has only numbers: the operation and its arguments.
const ARGUMENTS_MAX: usize = 5;

/// A request whose numbers have been read; its bytes stay in the page.
pub struct Request {
    page: ClonePage,
    bytes: usize,
    /// What to do.
    pub operation: u32,
    arguments: [Option<u64>; ARGUMENTS_MAX],
}

impl Request {
    /// Reads the request; one that is too short for an operation has operation 0, which does not exist.
    pub fn read(page: ClonePage) -> Self {
        let bytes = page.request_bytes();
        let number = |at: usize, width: usize| {
            (at + width <= bytes).then(|| {
                (0..width).rev().fold(0, |number, index| number << 8 | u64::from(page.request_byte(at + index)))
            })
        };
        let operation = number(0, 4).unwrap_or_default() as u32;
        let arguments = core::array::from_fn(|index| number(4 + index * 8, 8));
        Self { page, bytes, operation, arguments }
    }

    /// The arguments; `None` if fewer came.
    pub fn arguments<const COUNT: usize>(&self) -> Option<[u64; COUNT]> {
        let mut arguments = [0; COUNT];
        for (to, from) in arguments.iter_mut().zip(self.arguments) {
            *to = from?;
        }
        Some(arguments)
    }

    /// The bytes behind the operation.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + use<> {
        let page = self.page;
        (4..self.bytes).map(move |at| page.request_byte(at))
    }
}

/// An answer in the making. It is written straight into the page, where nobody looks before it is published.
pub struct Answer {
    page: ClonePage,
    bytes: usize,
}

impl Answer {
    /// An answer whose status is set at the end.
    pub fn new(page: ClonePage) -> Self {
        Self { page, bytes: 4 }
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.page.put_answer_byte(self.bytes, byte);
            self.bytes += 1;
        }
    }

    /// Appends a number.
    pub fn put_u64(&mut self, number: u64) {
        self.put(&number.to_le_bytes());
    }

    /// Sets the status; an answer that is not [`ramet_abi::request::OK`] is nothing but a status.
    pub fn finish(self, status: u32) -> usize {
        for (at, byte) in status.to_le_bytes().into_iter().enumerate() {
            self.page.put_answer_byte(at, byte);
        }
        if status == ramet_abi::request::OK { self.bytes } else { 4 }
    }
}
