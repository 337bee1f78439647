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

/// The longest file of a table or plan that is read, in bytes: every rank of a job reads it.
pub const LONGEST_FILE: u64 = 64 << 20;

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
    let text = topology::read_text_up_to(&path.to_string_lossy(), LONGEST_FILE);
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

/// What the name of a table that is being written begins and ends with.
fn name_of_new(path: &Path) -> (String, &'static str) {
    (format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy()), ".new")
}

/// A file beside a table, which will take its place. Who writes it has locked it.
fn new_file(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    if path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file"));
    }
    let (prefix, suffix) = name_of_new(path);
    // As any file that a program makes: who may read it is up to the user.
    let mode = Permissions::from_mode(0o666);
    loop {
        let mut new = tempfile::Builder::new();
        let file = new.prefix(&prefix).suffix(suffix).permissions(mode.clone()).tempfile_in(folder_of(path))?;
        // Where the file system has no locks, files of writers that were killed stay.
        let _ = file.as_file().lock();
        // Another writer may have found it before it was locked.
        if file.path().exists() {
            return Ok(file);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes what writers have left that were killed: nobody holds its lock.
fn clean(path: &Path) {
    let (prefix, suffix) = name_of_new(path);
    for entry in folder_of(path).read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(suffix) {
            // The lock holds until the file is gone. It may have gone by itself.
            let _ = File::open(entry.path()).and_then(|file| {
                file.try_lock()?;
                std::fs::remove_file(entry.path())
            });
        }
    }
}

/// The table itself, if a path is a link to it.
fn table_at(path: &Path) -> std::path::PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| !about.is_file())
}

/// Whether [`write`] can write to a path.
pub(crate) fn can_write(path: &Path) -> Result<(), TableError> {
    let table = table_at(path);
    let checked = match is_special(&table) {
        true => File::options().write(true).open(&table).map(drop),
        false => new_file(&table).map(drop),
    };
    checked.map_err(|error| TableError::Io { path: path.display().to_string(), error })
}

/// Writes a table so that a reader, and who writes at the same time, sees an old table or a new one, never a mixture, whatever
/// happens to this process. What is no regular file is written to, and not replaced.
pub(crate) fn write(table: &impl Serialize, path: &Path) -> Result<(), TableError> {
    let save = || -> io::Result<()> {
        let path = &table_at(path);
        if is_special(path) {
            return File::options().write(true).open(path)?.write_all(text(table)?.as_bytes());
        }
        clean(path);
        let mut file = new_file(path)?;
        file.write_all(text(table)?.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        // The table is there; a file system that cannot say so of the folder has nothing better to offer.
        let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
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

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_killed_writers_have_left_goes_and_what_others_write_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        let other = new_file(&path).unwrap();
        let name = other.path().file_name().unwrap().to_str().unwrap().to_owned();
        std::fs::write(folder.path().join(".table.json.killed.new"), "half").unwrap();
        std::fs::write(folder.path().join(".other.json.killed.new"), "half").unwrap();
        write(&1, &path).unwrap();
        let mut expected = [name, ".other.json.killed.new".to_owned(), "table.json".to_owned()];
        expected.sort();
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn writers_at_the_same_time_leave_one_whole_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        std::thread::scope(|scope| {
            for number in 0..4_u32 {
                let path = &path;
                scope.spawn(move || (0..20).for_each(|_| write(&vec![number; 1000], path).unwrap()));
            }
        });
        let table: Vec<u32> = read(&path).unwrap();
        assert!(table.len() == 1000 && table.iter().all(|of| *of == table[0]));
        assert_eq!(names(folder.path()), ["table.json"]);
    }

    #[test]
    fn whether_a_table_can_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        can_write(&folder.path().join("table.json")).unwrap();
        assert!(names(folder.path()).is_empty());
        // Nobody can make files there, whoever it is.
        for place in ["/proc/table.json", "/nowhere/table.json", ""] {
            assert!(matches!(can_write(Path::new(place)), Err(TableError::Io { .. })), "{place}");
        }
    }

    #[test]
    fn of_files_that_are_too_long_nothing_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        // It has a length and no content.
        File::create(&path).unwrap().set_len(LONGEST_FILE + 1).unwrap();
        let error = read::<u32>(&path).unwrap_err().to_string();
        assert!(error.contains("more than 67108864 bytes"), "{error}");
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
