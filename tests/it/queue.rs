//! The queue over a real database: leases, the fence, wake-ups, and workers that stop, die or lose their connections.

mod half_open;
mod lease;
mod worker;
