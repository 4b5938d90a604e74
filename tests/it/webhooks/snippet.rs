//! The receiver of docs/webhooks.md verifies what we sign.

use std::path::Path;
use std::process::Command;

use boxrun::runs::Secret;
use boxrun::webhooks::sign::SigningSecret;

const CHECK: &str = r#"
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["FOLDER"])
import receiver
headers = {"webhook-id": "id", "webhook-timestamp": os.environ["TIMESTAMP"], "webhook-signature": os.environ["SIGNATURE"]}
print(receiver.verify(os.environ["SECRET"], headers, os.environ["BODY"].encode()))
"#;

#[test]
fn the_receiver_of_the_docs_verifies_what_we_sign() {
    let docs = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/webhooks.md")).unwrap();
    let (_, rest) = docs.split_once("```python\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("receiver.py"), program).unwrap();
    let secret = SigningSecret::generate();
    let says = |signed_at: i64, body: &str| {
        let signature = secret.sign("id", signed_at, b"{\"type\": \"run.finished\"}");
        let output = Command::new("python3")
            .args(["-c", CHECK])
            .env("FOLDER", folder.path())
            .env("SECRET", Secret::expose(&secret.text()))
            .env("TIMESTAMP", signed_at.to_string())
            .env("SIGNATURE", signature)
            .env("BODY", body)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let now = chrono::Utc::now().timestamp();
    assert_eq!(says(now, "{\"type\": \"run.finished\"}"), "True");
    assert_eq!(says(now, "{\"type\": \"run.forged\"}"), "False");
    assert_eq!(says(now - 3600, "{\"type\": \"run.finished\"}"), "False");
}
