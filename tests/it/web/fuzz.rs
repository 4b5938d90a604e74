//! A fuzzer reads `/openapi.json` and asks whatever it allows, and much that it does not.

use std::path::{Path, PathBuf};

use boxrun::runs::SecretKeys;
use boxrun::web::tokens::Scope;
use sqlx::PgPool;
use tokio::process::Command;

use super::site::Site;

/// Where `bin/_venv` puts it.
fn schemathesis() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("schemathesis/bin/schemathesis");
    assert!(
        program.exists(),
        "schemathesis is not in {}: run bin/_venv schemathesis (bin/test does)",
        target.join("schemathesis").display()
    );
    program
}

/// It finds an answer of a status or shape that is not described, a good request that is refused, a bad one that is not, a
/// 5xx, and more; without a token everything is refused.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_fuzzer_that_has_the_description_finds_nothing(pool: PgPool) {
    let site = Site::open_with(pool, |options| {
        options.secret_keys = Some(SecretKeys::parse("QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=").unwrap());
    })
    .await;
    let scopes = [Scope::RunsRead, Scope::RunsWrite, Scope::BoxesWrite];
    let token = site.token_of(&site.app.principal, &scopes).await;
    let folder = tempfile::tempdir().unwrap();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/schemathesis");
    let mut fuzzer = Command::new(schemathesis());
    fuzzer
        .arg("--config-file")
        .arg(ours.join("schemathesis.toml"))
        .arg("run")
        .arg(format!("{}/openapi.json", site.url()))
        .arg("--header")
        .arg(format!("Authorization: Bearer {token}"))
        .current_dir(folder.path())
        .env("SCHEMATHESIS_HOOKS", ours.join("hooks.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .kill_on_drop(true);
    let output = fuzzer.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    site.close().await;
}
