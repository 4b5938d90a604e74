//! What callers were told and saw, as it happened.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use boxrun::ids::{BoxId, RunId};
use boxrun::runs::{OutputRead, RunState};
use chrono::{DateTime, Utc};

use crate::plan::Plan;

/// One run that somebody was told of.
pub struct Told {
    pub box_id: BoxId,
    pub key: String,
    pub plan: Plan,
    pub told_at: DateTime<Utc>,
    /// Somebody tried to ask it to end; whether that arrived is another matter.
    pub cancel_sent: bool,
    /// What the answer to that said: the run had that time, or none because it had ended.
    pub cancel_told: Option<Option<DateTime<Utc>>>,
    /// As its follower read them.
    pub states: Vec<(DateTime<Utc>, RunState)>,
    /// As they were announced.
    pub news: Vec<(DateTime<Utc>, RunState)>,
    /// What its follower read: each with the offset of its first byte.
    pub pieces: Vec<(i64, String)>,
    /// Where its follower reads on.
    pub next_offset: i64,
}

#[derive(Default)]
pub struct Witness {
    runs: Mutex<HashMap<RunId, Told>>,
    /// News of runs whose admission nobody was told of yet.
    early_news: Mutex<Vec<(DateTime<Utc>, RunId, RunState)>>,
    accusations: Mutex<Vec<(DateTime<Utc>, Option<RunId>, String)>>,
}

impl Witness {
    pub fn runs(&self) -> MutexGuard<'_, HashMap<RunId, Told>> {
        lock(&self.runs)
    }

    /// Says of something that it may not happen.
    pub fn accuse(&self, run: Option<RunId>, what: String) {
        lock(&self.accusations).push((Utc::now(), run, what));
    }

    pub fn accusations(&self) -> Vec<(DateTime<Utc>, Option<RunId>, String)> {
        lock(&self.accusations).clone()
    }

    /// A caller was told that its commit holds.
    pub fn told(&self, id: RunId, box_id: &BoxId, key: &str, plan: &Plan) {
        let mut runs = self.runs();
        let other = runs.iter().find(|(other, told)| told.key == key && **other != id);
        let other = other.map(|(other, _)| *other);
        runs.entry(id).or_insert_with(|| Told {
            box_id: box_id.clone(),
            key: key.to_owned(),
            plan: plan.clone(),
            told_at: Utc::now(),
            cancel_sent: false,
            cancel_told: None,
            states: Vec::new(),
            news: Vec::new(),
            pieces: Vec::new(),
            next_offset: 0,
        });
        drop(runs);
        if let Some(other) = other {
            self.accuse(
                Some(id),
                format!("key {key} was told to be run {other}, and then run {id}"),
            );
        }
    }

    pub fn announced(&self, id: RunId, state: RunState) {
        match self.runs().get_mut(&id) {
            Some(told) => told.news.push((Utc::now(), state)),
            None => lock(&self.early_news).push((Utc::now(), id, state)),
        }
    }

    /// Hands news that came before the answer to the runs that they are about.
    pub fn sort_early_news(&self) {
        let mut runs = self.runs();
        for (at, id, state) in lock(&self.early_news).drain(..) {
            if let Some(told) = runs.get_mut(&id) {
                told.news.push((at, state));
            }
        }
        for told in runs.values_mut() {
            told.news.sort_by_key(|(at, _)| *at);
        }
    }

    pub fn read(&self, id: RunId, state: RunState, read: &OutputRead) {
        let mut runs = self.runs();
        let told = runs.get_mut(&id).expect("its admission was told");
        if told.states.last().is_none_or(|(_, last)| *last != state) {
            told.states.push((Utc::now(), state));
        }
        if !read.output.is_empty() {
            let length = i64::try_from(read.output.len()).expect("output is bounded");
            told.pieces.push((read.next_offset - length, read.output.clone()));
        }
        told.next_offset = read.next_offset;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
