//! The domain over a real database: what it refuses, what it keeps, and who wins a race.

mod admission;
mod guard;
mod output;
