//! Requests to guests, through their clone pages.
//!
//! The host writes a request and interrupts the guest through an irqfd; the guest answers and rings an ioeventfd.
//! Neither way wakes the machine's process. What the guest writes is hostile: lengths are bounded, nothing is believed.

use crate::family::Family;
use crate::lifecycle::Phase;
use ramet_abi::clone_page::{
    ANSWER_AT, ANSWER_LENGTH_AT, ANSWER_MAX_BYTES, ANSWER_SEQUENCE_AT, FIRST_INSTRUCTION_TSC_AT, REQUEST_AT,
    REQUEST_LENGTH_AT, REQUEST_MAX_BYTES, REQUEST_SEQUENCE_AT,
};
use ramet_memory::SharedPageError;
use std::time::{Duration, Instant};

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No such machine.
    #[error("There is no machine {number}")]
    Unknown {
        /// Asked for.
        number: u64,
    },
    /// It does not run.
    #[error("Machine {number} is {phase:?} and answers nothing{}", ended(.how))]
    NotRunning {
        /// Machine.
        number: u64,
        /// Where it is.
        phase: Phase,
        /// How it ended, if it did.
        how: Option<String>,
    },
    /// Too long a request.
    #[error("Request of {bytes} bytes exceeds {REQUEST_MAX_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The guest works on another request still.
    #[error("Machine {number} has not answered its last request yet")]
    Busy {
        /// Machine.
        number: u64,
    },
    /// No answer.
    #[error("Machine {number} gave no answer within {milliseconds} ms")]
    Timeout {
        /// Machine.
        number: u64,
        /// How long it was waited for.
        milliseconds: u128,
    },
    /// A length that cannot be.
    #[error("Machine {number} says that its answer has {bytes} bytes; {ANSWER_MAX_BYTES} are possible")]
    BadLength {
        /// Machine.
        number: u64,
        /// What it says.
        bytes: u32,
    },
    /// The page.
    #[error("Clone page cannot be accessed")]
    Page(#[source] SharedPageError),
}

fn ended(how: &Option<String>) -> String {
    how.as_ref().map(|how| format!(": {how}")).unwrap_or_default()
}

impl Family {
    /// Puts a request to a guest and waits for its answer.
    ///
    /// # Errors
    /// [`RequestError`] if the machine cannot or does not answer.
    pub fn request(&mut self, number: u64, request: &[u8], timeout: Duration) -> Result<Vec<u8>, RequestError> {
        let sequence = self.post(number, request)?;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(answer) = self.poll_answer(number, sequence)? {
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RequestError::Timeout { number, milliseconds: timeout.as_millis() });
            }
            self.step(left);
        }
    }

    /// Puts a request to a guest and returns at once; the request's number, for [`Self::poll_answer`].
    ///
    /// # Errors
    /// [`RequestError`] if it cannot be put.
    pub fn post(&mut self, number: u64, request: &[u8]) -> Result<u32, RequestError> {
        if request.len() > REQUEST_MAX_BYTES {
            return Err(RequestError::TooLong { bytes: request.len() });
        }
        let member = self.members.get(&number).ok_or(RequestError::Unknown { number })?;
        if !matches!(member.phase(), Phase::Running | Phase::Freezing) {
            let how = (member.phase() == Phase::Dead).then(|| self.how_it_ended(number));
            return Err(RequestError::NotRunning { number, phase: member.phase(), how });
        }
        let Some(links) = &member.links else { return Err(RequestError::Unknown { number }) };
        let page = &links.page;
        let newest = page.load_u32(REQUEST_SEQUENCE_AT).map_err(RequestError::Page)?;
        if page.load_u32(ANSWER_SEQUENCE_AT).map_err(RequestError::Page)? != newest {
            return Err(RequestError::Busy { number });
        }
        let sequence = newest.wrapping_add(1).max(1);
        page.write(REQUEST_AT, request).map_err(RequestError::Page)?;
        let length = u32::try_from(request.len()).unwrap_or(0);
        page.store_u32(REQUEST_LENGTH_AT, length).map_err(RequestError::Page)?;
        page.store_u32(REQUEST_SEQUENCE_AT, sequence).map_err(RequestError::Page)?;
        member.ring();
        Ok(sequence)
    }

    /// The answer to a request, if it is there.
    ///
    /// # Errors
    /// [`RequestError`] if it will not come, or is none.
    pub fn poll_answer(&self, number: u64, sequence: u32) -> Result<Option<Vec<u8>>, RequestError> {
        let member = self.members.get(&number).ok_or(RequestError::Unknown { number })?;
        let Some(links) = &member.links else {
            let how = Some(self.how_it_ended(number));
            return Err(RequestError::NotRunning { number, phase: member.phase(), how });
        };
        let page = &links.page;
        if page.load_u32(ANSWER_SEQUENCE_AT).map_err(RequestError::Page)? != sequence {
            if matches!(member.phase(), Phase::Dead | Phase::Done | Phase::Template) {
                let how = (member.phase() == Phase::Dead).then(|| self.how_it_ended(number));
                return Err(RequestError::NotRunning { number, phase: member.phase(), how });
            }
            return Ok(None);
        }
        let bytes = page.load_u32(ANSWER_LENGTH_AT).map_err(RequestError::Page)?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if length > ANSWER_MAX_BYTES {
            return Err(RequestError::BadLength { number, bytes });
        }
        let mut answer = vec![0; length];
        page.read(ANSWER_AT, &mut answer).map_err(RequestError::Page)?;
        Ok(Some(answer))
    }

    /// The host's time-stamp counter when a guest executed its first instruction, from what the guest stored then and
    /// its offset; `None` until it has and is known to be built, and where the host does not tell the offset.
    pub fn first_instruction_tsc(&self, number: u64) -> Option<u64> {
        let member = self.members.get(&number)?;
        let guest = member.links.as_ref()?.page.load_u64(FIRST_INSTRUCTION_TSC_AT).ok().filter(|tsc| *tsc != 0)?;
        Some(guest.wrapping_sub(member.stamps?.tsc_offset?))
    }
}
