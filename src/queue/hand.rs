//! The jobs in this process's hand: for renewal, and to tell a job's holder that something else is wanted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::claim::Lease;
use crate::ids::RunId;

/// Why a job should be let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Somebody asked for the run's end: a poll is dropped and turns into a stop.
    Urgent,
    /// The process is shutting down: what can be repeated is given back.
    Shutdown,
    /// Somebody else holds the job now: whatever is found out is dropped.
    LeaseLost,
}

/// All jobs in hand, shared by claimer, listener and renewal.
#[derive(Debug, Clone, Default)]
pub struct Hands(Arc<Mutex<HashMap<RunId, Entry>>>);

#[derive(Debug)]
struct Entry {
    lease: Lease,
    interrupt: watch::Sender<Option<Interrupt>>,
}

/// One job's place among those in hand; leaves it when dropped.
#[derive(Debug)]
pub(super) struct Hand {
    hands: Hands,
    lease: Lease,
    interrupt: watch::Receiver<Option<Interrupt>>,
}

impl Hands {
    pub(super) fn take(&self, lease: Lease) -> Hand {
        let (sender, receiver) = watch::channel(None);
        self.lock().insert(
            lease.run_id,
            Entry {
                lease,
                interrupt: sender,
            },
        );
        Hand {
            hands: self.clone(),
            lease,
            interrupt: receiver,
        }
    }

    /// The leases to renew.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        self.lock().values().map(|entry| entry.lease).collect()
    }

    /// Tells the holder of one run's job, if it is in this process.
    pub fn interrupt(&self, run_id: RunId, why: Interrupt) {
        if let Some(entry) = self.lock().get(&run_id) {
            entry.tell(why);
        }
    }

    /// Tells all holders.
    pub fn interrupt_all(&self, why: Interrupt) {
        self.lock().values().for_each(|entry| entry.tell(why));
    }

    /// Tells the holders of `leases`, unless the run's job was claimed anew since.
    pub(super) fn lost(&self, leases: &[Lease]) {
        let entries = self.lock();
        for lease in leases {
            if let Some(entry) = entries.get(&lease.run_id).filter(|entry| entry.lease == *lease) {
                entry.tell(Interrupt::LeaseLost);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// A lease that is lost stays lost; otherwise the newest word counts.
    fn tell(&self, why: Interrupt) {
        self.interrupt.send_if_modified(|told| {
            let news = *told != Some(Interrupt::LeaseLost) && *told != Some(why);
            if news {
                *told = Some(why);
            }
            news
        });
    }
}

impl Hand {
    pub(super) async fn interrupted(&self) -> Interrupt {
        let mut receiver = self.interrupt.clone();
        let told = receiver.wait_for(Option::is_some).await.map(|told| *told);
        match told {
            Ok(Some(why)) => why,
            // The entry was replaced: the same run's job was claimed anew by this process.
            Ok(None) | Err(_) => Interrupt::LeaseLost,
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let mut entries = self.hands.lock();
        if entries
            .get(&self.lease.run_id)
            .is_some_and(|entry| entry.lease == self.lease)
        {
            entries.remove(&self.lease.run_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn lease(run: u128, token: u128) -> Lease {
        Lease {
            run_id: RunId(Uuid::from_u128(run)),
            token: Uuid::from_u128(token),
        }
    }

    #[tokio::test]
    async fn a_holder_is_told_and_an_older_lease_of_the_same_run_is_lost() {
        let hands = Hands::default();
        let first = hands.take(lease(1, 1));
        let second = hands.take(lease(1, 2));
        assert_eq!(first.interrupted().await, Interrupt::LeaseLost);
        hands.interrupt(RunId(Uuid::from_u128(1)), Interrupt::Urgent);
        assert_eq!(second.interrupted().await, Interrupt::Urgent);
        drop(first);
        assert_eq!(hands.leases(), vec![lease(1, 2)]);
        drop(second);
        assert!(hands.leases().is_empty());
    }

    #[tokio::test]
    async fn a_lost_lease_stays_lost() {
        let hands = Hands::default();
        let hand = hands.take(lease(1, 1));
        hands.lost(&[lease(1, 1)]);
        hands.interrupt_all(Interrupt::Shutdown);
        assert_eq!(hand.interrupted().await, Interrupt::LeaseLost);
    }
}
