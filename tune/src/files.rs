//! Tables as files.
//!
//! The principal functions are [`parse`] and [`write`].

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Formatter};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use topology::document::{Document, TextError};

/// Why a table is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Not readable: the file, and why.
    #[error("{0}")]
    Unreadable(String),
    /// Not writable.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Not a table.
    #[error("{path}:{line}:{column}: {message}")]
    Syntax {
        /// The file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A table that contradicts itself.
    #[error("{path}: {what}")]
    Senseless {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// A table from its text; `origin` names the source in errors.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, TableError> {
    Document::json(origin, text).parse().map_err(|TextError { origin: path, line, column, reason: message }| {
        TableError::Syntax { path, line, column, message }
    })
}

/// A table from a file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, TableError> {
    let shown = path.display().to_string();
    let text = topology::read_text(&path.to_string_lossy());
    parse(&text.map_err(|error| TableError::Unreadable(error.to_string()))?, &shown)
}

/// Reads a map in which no name comes twice: otherwise the last one would be taken, and nobody would know of the others.
pub(crate) fn each_name_once<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    struct NamedValues<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedValues<T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((name, value)) = entries.next_entry::<String, T>()? {
                if map.contains_key(&name) {
                    return Err(serde::de::Error::custom(format!("`{}` comes twice", topology::shorten(&name))));
                }
                map.insert(name, value);
            }
            Ok(map)
        }
    }
    from.deserialize_map(NamedValues(PhantomData))
}

/// The same text for the same table.
pub(crate) fn text(table: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(table)? + "\n")
}

/// Writes a table so that a reader, and who writes at the same time, sees an old table or a new one, never a mixture, whatever
/// happens to this process. What is no regular file is written to, and not replaced.
pub(crate) fn write(table: &impl Serialize, path: &Path) -> Result<(), TableError> {
    let save = || -> io::Result<()> {
        // Not a link to the table, but the table.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if path.metadata().is_ok_and(|about| !about.is_file()) {
            return File::options().write(true).open(path)?.write_all(text(table)?.as_bytes());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As any file that a program makes: who may read it is up to the user.
        let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        file.write_all(text(table)?.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    save().map_err(|error| TableError::Io { path: path.display().to_string(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_has_one_place() {
        let error = parse::<u32>("\n x", "t.json").unwrap_err().to_string();
        assert!(error.starts_with("t.json:2:2: ") && !error.contains("line"), "{error}");
    }

    #[test]
    fn a_link_to_a_table_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let [table, link] = ["table", "link"].map(|name| folder.path().join(name));
        std::fs::write(&table, "").unwrap();
        std::os::unix::fs::symlink(&table, &link).unwrap();
        write(&1, &link).unwrap();
        assert!(link.is_symlink() && std::fs::read_to_string(&table).unwrap() == "1\n");
    }

    #[test]
    fn others_may_read_what_the_user_lets_them() {
        let folder = tempfile::tempdir().unwrap();
        let [plain, table] = ["plain", "table"].map(|name| folder.path().join(name));
        std::fs::write(&plain, "").unwrap();
        write(&1, &table).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&plain), mode(&table));
    }
}
