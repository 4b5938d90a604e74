//! A new migration compiles in at the next build.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
