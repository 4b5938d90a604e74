//! The web process as its users see it: real requests to a process that listens, a real database, a scripted provider.

mod access;
mod command_line;
mod contract;
mod detach;
mod fuzz;
mod live;
pub mod site;
mod starts;
