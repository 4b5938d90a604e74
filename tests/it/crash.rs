//! Real worker processes over a real PostgreSQL and the simulator, killed, stopped and cut off at the worst moments.
//!
//! What really happened on a box is read from the simulator's own record, never from the database: commands count
//! themselves as they start, and every request is written down with its time.

mod command;
mod durability;
mod each_step;
mod matrix;
mod outage;
mod setting;
mod shutdown;
mod takeover;
mod up;
mod worker;
