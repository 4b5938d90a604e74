//! Which addresses are called: public ones alone, so that nobody reaches our own network by naming it in a URL.
//!
//! The address is judged as it was resolved, in the step that connects to it; a name that resolves otherwise a moment later
//! gains nothing. Crates that do this are parts of others' products or a first release, so the table is our own: IANA's
//! registries of special-purpose addresses, less what is globally reachable.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ::url::{Host, Url};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Networks of IPv4 that are not called: first address and length of the prefix.
const REFUSED_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::UNSPECIFIED, 8),           // this network, unspecified
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local, with the metadata services of clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),     // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),     // reserved, broadcast
];

/// Of IPv6 only this is called, less what is refused below: global unicast.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Networks within global unicast that are not called. What carries an IPv4 address is judged by it instead.
const REFUSED_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, Teredo
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Targets {
    Public,
    /// Private ones too: for development and tests.
    Any,
}

/// The host has no address that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TargetRefused;

impl fmt::Display for TargetRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("target_refused: the host has no public address")
    }
}

impl std::error::Error for TargetRefused {}

impl Targets {
    fn allow(self, address: IpAddr) -> bool {
        self == Self::Any || is_public(address)
    }

    /// Judges a host that is an address itself: it is resolved by nobody.
    pub(super) fn check_literal(self, url: &Url) -> Result<(), TargetRefused> {
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(_)) => return Ok(()),
            None => return Err(TargetRefused),
        };
        if self.allow(address) {
            Ok(())
        } else {
            Err(TargetRefused)
        }
    }

    /// For the client: resolves as the system does, and drops what is not called.
    pub(super) fn resolver(self) -> Arc<dyn Resolve> {
        Arc::new(Resolver(self))
    }
}

struct Resolver(Targets);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let targets = self.0;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let called: Vec<SocketAddr> = found.into_iter().filter(|found| targets.allow(found.ip())).collect();
            if called.is_empty() {
                return Err(TargetRefused.into());
            }
            Ok(Box::new(called.into_iter()) as Addrs)
        })
    }
}

/// Whether anybody on the internet can be reached at it.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => carried_v4(address).map_or_else(|| is_public_v6(address), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let within = |(first, length): &(Ipv4Addr, u32)| {
        let shift = 32 - length;
        u32::from(address) >> shift == u32::from(*first) >> shift
    };
    !REFUSED_V4.iter().any(within)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let within = |(first, length): &(Ipv6Addr, u32)| {
        let shift = 128 - length;
        u128::from(address) >> shift == u128::from(*first) >> shift
    };
    within(&GLOBAL_V6) && !REFUSED_V6.iter().any(within)
}

/// The IPv4 address to which a packet really goes: mapped (`::ffff:a.b.c.d`), NAT64 (`64:ff9b::a.b.c.d`), 6to4 (`2002:…`).
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [s0, s1, s2, s3, s4, s5, s6, s7] = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (s0, s1, s2, s3, s4, s5) {
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(of(s6, s7)),
        (0x2002, ..) => Some(of(s1, s2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_in_each_disguise_are_refused() {
        for refused in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:c0a8:101::1",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "5f00::1",
        ] {
            assert!(!is_public(refused.parse().unwrap()), "{refused}");
        }
    }

    #[test]
    fn public_addresses_are_called() {
        for called in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "128.0.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2606:4700::1111",
            "2a00::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
        ] {
            assert!(is_public(called.parse().unwrap()), "{called}");
        }
    }

    #[test]
    fn an_address_in_the_url_is_judged_however_it_is_written() {
        let check = |text: &str| Targets::Public.check_literal(&Url::parse(text).unwrap());
        for refused in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://[::1]/",
            "http://[::ffff:7f00:1]/",
            "https://169.254.169.254/latest",
        ] {
            assert_eq!(check(refused), Err(TargetRefused), "{refused}");
        }
        assert_eq!(check("https://1.1.1.1/"), Ok(()));
        assert_eq!(check("https://app.example.com/"), Ok(()));
        assert_eq!(
            Targets::Any.check_literal(&Url::parse("http://127.0.0.1/").unwrap()),
            Ok(())
        );
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_refused() {
        let resolved = Targets::Public.resolver().resolve("localhost".parse().unwrap()).await;
        let refused = resolved.err().expect("a refusal");
        assert!(refused.downcast_ref::<TargetRefused>().is_some(), "{refused}");
        assert!(
            Targets::Any
                .resolver()
                .resolve("localhost".parse().unwrap())
                .await
                .is_ok()
        );
    }
}
