//! The life of a machine, as its supervisor sees it: a pure state machine.
//!
//! ```text
//!            Blank            Build             Running
//! Bearing ----------> Blank --------> Building ---------> Running <---> Paused
//!    |                                    ^                |  ^  |
//!    +------------------------------------+                |  |  |
//!                                              Freeze      v  |  +--> Done
//!                                                        Freezing ---> Template
//! any -- Died --> Dead
//! ```
//!
//! Everything that happens to a machine is an [`Event`]; what is not drawn is refused. This is the one writer of a
//! machine's lifecycle: nothing else changes a [`Phase`].

use serde::Serialize;

/// Where a machine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its process is being born.
    Bearing,
    /// It waits for a state.
    Blank,
    /// It is being built from a plan.
    Building,
    /// Its vCPUs run.
    Running,
    /// Its vCPUs are held.
    Paused,
    /// It is being frozen; its vCPUs are held for that long.
    Freezing,
    /// It is a frozen template: children are dispatched from it, it never runs again.
    Template,
    /// It has said that its job is done and is held.
    Done,
    /// Its process has ended.
    Dead,
}

/// What can happen to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process has its KVM objects and waits.
    BornBlank,
    /// A plan was sent.
    BuildSent,
    /// The machine is built and runs, or is held if it was to be.
    Built {
        /// Whether it is held.
        paused: bool,
    },
    /// A freeze was asked for.
    FreezeSent,
    /// The freeze is over and the machine goes on.
    Thawed,
    /// The freeze is over and the machine stays a template.
    BecameTemplate,
    /// It was told to hold.
    PauseSent,
    /// It was told to go on.
    ResumeSent,
    /// The guest said that it is done.
    SaidDone,
    /// The process ended.
    Died,
}

/// An event that makes no sense in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("A machine that is {phase:?} cannot take {event:?}")]
pub struct Refused {
    /// Where the machine is.
    pub phase: Phase,
    /// What was to happen.
    pub event: Event,
}

impl Phase {
    /// The phase after an event.
    ///
    /// # Errors
    /// [`Refused`] if the event makes no sense; the machine stays as it is.
    pub const fn after(self, event: Event) -> Result<Self, Refused> {
        match (self, event) {
            (Self::Bearing, Event::BornBlank) => Ok(Self::Blank),
            // A plan may be sent before its receiver has said that it is ready for it.
            (Self::Bearing | Self::Blank, Event::BuildSent) => Ok(Self::Building),
            (Self::Building, Event::Built { paused: false }) | (Self::Paused, Event::ResumeSent) => Ok(Self::Running),
            (Self::Building, Event::Built { paused: true }) | (Self::Running, Event::PauseSent) => Ok(Self::Paused),
            (Self::Running, Event::FreezeSent) => Ok(Self::Freezing),
            (Self::Freezing, Event::Thawed) => Ok(Self::Running),
            (Self::Freezing, Event::BecameTemplate) => Ok(Self::Template),
            // It may say so while an order to stop is on its way; what comes of that order is then without effect.
            (Self::Running | Self::Freezing | Self::Paused, Event::SaidDone) => Ok(Self::Done),
            (Self::Done, Event::Thawed | Event::PauseSent) => Ok(Self::Done),
            (phase, Event::Died) if !matches!(phase, Self::Dead) => Ok(Self::Dead),
            (phase, event) => Err(Refused { phase, event }),
        }
    }

    /// Whether the machine has been built and its process lives.
    pub const fn is_alive(self) -> bool {
        !matches!(self, Self::Dead | Self::Bearing | Self::Blank)
    }

    /// Whether children can be forked from it.
    pub const fn is_forkable(self) -> bool {
        matches!(self, Self::Running | Self::Template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::BornBlank),
            Just(Event::BuildSent),
            any::<bool>().prop_map(|paused| Event::Built { paused }),
            Just(Event::FreezeSent),
            Just(Event::Thawed),
            Just(Event::BecameTemplate),
            Just(Event::PauseSent),
            Just(Event::ResumeSent),
            Just(Event::SaidDone),
            Just(Event::Died),
        ]
    }

    proptest! {
        #[test]
        fn death_is_final_and_always_possible(events in prop::collection::vec(any_event(), 0..40)) {
            let mut phase = Phase::Bearing;
            for event in events {
                let next = phase.after(event);
                prop_assert_eq!(phase == Phase::Dead, phase.after(Event::Died).is_err());
                if phase == Phase::Dead {
                    prop_assert!(next.is_err());
                }
                phase = next.unwrap_or(phase);
            }
        }

        #[test]
        fn nothing_runs_before_it_is_built(events in prop::collection::vec(any_event(), 0..40)) {
            let (mut phase, mut built) = (Phase::Bearing, false);
            for event in events {
                if let Ok(next) = phase.after(event) {
                    built |= matches!(event, Event::Built { .. });
                    phase = next;
                }
                let runs = matches!(phase, Phase::Running | Phase::Paused | Phase::Freezing | Phase::Template | Phase::Done);
                prop_assert!(!runs || built);
            }
        }

        #[test]
        fn a_template_never_runs_again(events in prop::collection::vec(any_event(), 0..40)) {
            let mut phase = Phase::Template;
            for event in events {
                phase = phase.after(event).unwrap_or(phase);
                prop_assert!(matches!(phase, Phase::Template | Phase::Dead));
            }
        }
    }
}
