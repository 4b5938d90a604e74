//! What may happen next, and what follows from it.

use boxrun::runs::RunState;
use stateright::{Model, Property};

use super::machine::{Answer, Kind, LOG_LINES, Launch, OWN_EXIT, Outcome, Place, Stage};
use super::properties;
use super::row::{Asked, Row};
use super::rules::{Budget, Rules};
use super::world::{Job, RUNS, Step, WORKERS, Worker, World};

/// The protocol under some rules, with so much that may go wrong, and so many runs on the one box.
#[derive(Debug, Clone)]
pub struct Protocol {
    pub rules: Rules,
    pub budget: Budget,
    pub runs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The next run of the box, once the one before is over.
    Admit,
    Cancel(usize),
    DeadlinePasses(usize),
    Claim(usize, usize),
    /// The worker's next step, by itself.
    Work(usize),
    /// The same, and the database's answer is lost: it is done, and the worker does it again.
    WorkUnheard(usize),
    /// The call of a worker has failed, and nothing is under way that could still answer it.
    CallFails(usize),
    /// The worker no longer waits for a request that is still under way.
    GivesUp(usize),
    Crash(usize),
    LeaseLapses(usize),
    /// A step of the script; `late`: a minute after the dispatch. `lost`: its answer does not come back.
    Arrives {
        request: usize,
        late: bool,
        lost: bool,
    },
    IsLost(usize),
    IsDoubled(usize),
    IsRefused(usize),
    WrapperComes(usize),
    Prints(usize),
    Exits(usize),
    BoxRestarts,
    BoxStops,
    BoxResumes,
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.budget)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.callers(world, actions);
        workers(world, actions);
        network(world, actions);
        box_itself(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        self.act(&mut next, action);
        Some(next.canonical())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Protocol {
    fn callers(&self, world: &World, actions: &mut Vec<Action>) {
        if self.runs == RUNS && world.rows[1].is_none() && world.all_over() {
            actions.push(Action::Admit);
        }
        for (run, row) in world.rows.iter().enumerate() {
            let Some(row) = row.filter(|row| !row.is_over()) else {
                continue;
            };
            if row.cancel.is_none() && world.budget.cancels > 0 {
                actions.push(Action::Cancel(run));
            }
            if !row.past_deadline && world.budget.deadlines > 0 {
                actions.push(Action::DeadlinePasses(run));
            }
        }
    }

    pub fn act(&self, world: &mut World, action: Action) {
        let budget = &mut world.budget;
        match action {
            Action::Admit => {
                world.rows[1] = Some(Row::ADMITTED);
                world.jobs[1] = Some(Job::NEW);
            }
            Action::Cancel(run) => {
                budget.cancels -= 1;
                cancel(world, run);
            }
            Action::DeadlinePasses(run) => {
                budget.deadlines -= 1;
                deadline_passes(world, run);
            }
            Action::Claim(worker, run) => self.claim(world, worker, run),
            Action::Work(worker) => self.work(world, worker),
            Action::WorkUnheard(worker) => {
                budget.faults -= 1;
                let before = world.workers[worker];
                self.work(world, worker);
                world.workers[worker] = before;
            }
            Action::CallFails(worker) => answer(world, worker, Answer::None),
            Action::GivesUp(worker) => {
                budget.faults -= 1;
                world.forget_asker(worker);
                answer(world, worker, Answer::None);
            }
            Action::Crash(worker) => {
                budget.faults -= 1;
                world.workers[worker] = Worker::Idle;
                world.forget_asker(worker);
                for job in world.jobs.iter_mut().flatten() {
                    job.lapsed |= job.holder == Some(worker);
                }
            }
            Action::LeaseLapses(run) => {
                budget.faults -= 1;
                if let Some(job) = &mut world.jobs[run] {
                    job.lapsed = true;
                }
            }
            Action::Arrives { request, late, lost } => {
                budget.faults -= u8::from(lost);
                self.arrives(world, request, late, lost);
            }
            Action::IsLost(request) => {
                budget.faults -= 1;
                world.requests.remove(request);
            }
            Action::IsDoubled(request) => {
                budget.faults -= 1;
                world.requests[request].doubled = true;
                let mut twin = world.requests[request];
                twin.asker = None;
                world.requests.push(twin);
            }
            Action::IsRefused(request) => {
                budget.faults -= 1;
                let refused = world.requests.remove(request);
                if refused.kind == Kind::Dispatch {
                    world.history[refused.run].dispatches -= 1;
                }
                if let Some(asker) = refused.asker {
                    answer(world, asker, Answer::NotTaken);
                }
            }
            Action::WrapperComes(run) => self.wrapper_comes(world, run),
            Action::Prints(run) => {
                if let Some(directory) = world.places[run].directory_mut() {
                    directory.log += 1;
                }
            }
            Action::Exits(run) => {
                if let Some(directory) = world.places[run].directory_mut() {
                    world.history[run].ended_by_itself |= !directory.kill_requested;
                    directory.end(OWN_EXIT);
                }
            }
            Action::BoxRestarts => {
                budget.faults -= 1;
                restart(world);
            }
            Action::BoxStops => {
                budget.faults -= 1;
                restart(world);
                world.box_is_up = false;
            }
            Action::BoxResumes => world.box_is_up = true,
        }
    }

    /// One step of a script on the box.
    fn arrives(&self, world: &mut World, index: usize, late: bool, lost: bool) {
        let request = world.requests.remove(index);
        let place = &mut world.places[request.run];
        let outcome = if world.box_is_up {
            if request.kind == Kind::Dispatch && *place == Place::Tombstone {
                world.history[request.run].met_tombstone = true;
            }
            place.step(&self.rules, request.kind, request.stage, late)
        } else if request.doubled {
            Outcome::Answer(Answer::None)
        } else {
            if request.kind == Kind::Dispatch {
                world.history[request.run].dispatches -= 1;
            }
            Outcome::Answer(Answer::BoxStopped)
        };
        match outcome {
            Outcome::GoesOn(stage) => world.requests.push(super::world::Request {
                stage,
                asker: request.asker.filter(|_| !lost),
                ..request
            }),
            Outcome::Answer(said) => {
                if let Some(asker) = request.asker.filter(|_| !lost) {
                    answer(world, asker, said);
                }
            }
        }
    }

    fn wrapper_comes(&self, world: &mut World, run: usize) {
        let Some(directory) = world.places[run].directory_mut() else {
            return;
        };
        if !directory.wrapper_comes(&self.rules) {
            return;
        }
        let row = world.rows[run].expect("it was dispatched");
        let never = row.reason == Some(boxrun::runs::FailureReason::DispatchAmbiguous);
        let others = (0..RUNS).filter(|other| *other != run);
        let beside = others.map(|other| world.places[other].alive()).sum::<u8>() > 0;
        let history = &mut world.history[run];
        history.starts += 1;
        history.started_too_late |= row.is_over() && (row.end_verified || never);
        history.started_beside_another |= beside;
    }
}

fn workers(world: &World, actions: &mut Vec<Action>) {
    for (index, worker) in world.workers.iter().enumerate() {
        match worker {
            Worker::Idle => {
                for (run, job) in world.jobs.iter().enumerate() {
                    if job.is_some_and(|job| job.is_claimable()) {
                        actions.push(Action::Claim(index, run));
                    }
                }
                continue;
            }
            Worker::Busy {
                step: Step::Wait(_), ..
            } => {
                if !world.asks(index) {
                    actions.push(Action::CallFails(index));
                } else if world.budget.faults > 0 {
                    actions.push(Action::GivesUp(index));
                }
            }
            Worker::Busy { step, .. } => {
                actions.push(Action::Work(index));
                let writes = matches!(step, Step::Claim | Step::Commit(..) | Step::EndUnsent);
                if writes && world.budget.faults > 0 {
                    actions.push(Action::WorkUnheard(index));
                }
            }
        }
        if world.budget.faults > 0 {
            actions.push(Action::Crash(index));
        }
    }
    if world.budget.faults > 0 {
        for (run, job) in world.jobs.iter().enumerate() {
            if job.is_some_and(|job| job.holder.is_some() && !job.lapsed) {
                actions.push(Action::LeaseLapses(run));
            }
        }
    }
}

fn network(world: &World, actions: &mut Vec<Action>) {
    for (index, request) in world.requests.iter().enumerate() {
        let is_waited_for = request.asker.is_some();
        let launch = world.places[request.run].directory().map(|directory| directory.launch);
        let may_be_late = request.kind == Kind::Poll && request.stage == Stage::Sent && launch == Some(Launch::Free);
        for late in [false, true] {
            if late && !may_be_late {
                continue;
            }
            for lost in [false, true] {
                if !lost || (is_waited_for && world.budget.faults > 0) {
                    actions.push(Action::Arrives {
                        request: index,
                        late,
                        lost,
                    });
                }
            }
        }
        if request.stage != Stage::Sent {
            continue;
        }
        if world.budget.faults > 0 {
            actions.push(Action::IsLost(index));
        }
        if !request.doubled && world.budget.faults > 0 {
            actions.push(Action::IsDoubled(index));
        }
        if is_waited_for && !request.doubled && world.budget.faults > 0 {
            actions.push(Action::IsRefused(index));
        }
    }
}

fn box_itself(world: &World, actions: &mut Vec<Action>) {
    if !world.box_is_up {
        actions.push(Action::BoxResumes);
        return;
    }
    for (run, place) in world.places.iter().enumerate() {
        let Some(directory) = place.directory() else { continue };
        if directory.starting > 0 {
            actions.push(Action::WrapperComes(run));
        }
        if directory.alive > 0 {
            let printed = directory.log >= LOG_LINES;
            actions.push(if printed {
                Action::Exits(run)
            } else {
                Action::Prints(run)
            });
        }
    }
    if world.budget.faults > 0 {
        actions.push(Action::BoxRestarts);
    }
    if world.budget.faults > 0 {
        actions.push(Action::BoxStops);
    }
}

/// `boxrun.request_cancel`.
fn cancel(world: &mut World, run: usize) {
    let Some(mut row) = world.rows[run] else { return };
    row.cancel = Some(if row.past_deadline {
        Asked::AfterDeadline
    } else {
        Asked::BeforeDeadline
    });
    if !row.claimed {
        row.state = RunState::Cancelled;
        row.end_verified = true;
        world.write(run, row);
        if world.jobs[run].is_some_and(|job| job.holder.is_none() || job.lapsed) {
            world.jobs[run] = None;
        }
        return;
    }
    world.write(run, row);
    if row.exit.is_some() {
        return;
    }
    // A job that is leased is marked urgent, which changes when it is due; one that is not loses a lease that has lapsed.
    let job = world.jobs[run].get_or_insert(Job::NEW);
    if job.holder.is_none() || job.lapsed {
        *job = Job::NEW;
    }
}

fn deadline_passes(world: &mut World, run: usize) {
    if let Some(row) = &mut world.rows[run] {
        row.past_deadline = true;
    }
}

/// Scripts that run end without a word, and so do those who wait for them.
fn restart(world: &mut World) {
    for directory in world.places.iter_mut().filter_map(Place::directory_mut) {
        directory.restart();
    }
    world.requests.retain(|request| request.stage == Stage::Sent);
}

fn answer(world: &mut World, worker: usize, said: Answer) {
    if let Worker::Busy { step, .. } = &mut world.workers[worker]
        && let Step::Wait(kind) = *step
    {
        *step = Step::Commit(kind, said);
    }
}

const _: () = assert!(WORKERS == 2 && RUNS == 2, "`canonical` knows two of each");
