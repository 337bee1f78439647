//! Programs of the first ranks of orbits: the checker of all ranks judges the one that looks at the first ranks only.

use super::*;
use ::schedule::testing::{COLLECTIVES, MACHINES, compressed};
use ::schedule::verify_compressed;
use testing::orbits::unfolded;

/// The programs of all machines and collectives.
fn programs() -> impl Iterator<Item = (String, OrbitProgram)> {
    let cases = MACHINES.iter().flat_map(|machine| COLLECTIVES.iter().map(move |what| (machine, what)));
    cases.map(|(&(spec, turns), &(collective, chunks))| {
        let (schedule, topology) = compressed(spec, turns, collective, chunks);
        let verified = verify_compressed(schedule, &topology).unwrap();
        (format!("{spec} {collective} {chunks}"), lower_orbits(&verified).unwrap())
    })
}

#[test]
fn what_is_accepted_on_first_ranks_is_accepted_on_all_and_computes_what_it_should() {
    let random = &mut Random(5);
    for (name, orbit) in programs() {
        let whole = checked(unfolded(&orbit).unwrap_or_else(|| panic!("{name}: no image")));
        let accepted = check_orbits(orbit).unwrap_or_else(|violations| panic!("{name}: {violations}"));
        assert_eq!(accepted.window(), whole.window(), "{name}");
        let program = whole.into_program();
        for (count, tiles) in [(1, 1), (7, 2), (48, 1)] {
            let executor = Executor { program: &program, count, tiles, transport: Transport::Window(0) };
            let state = executor.run(random).unwrap_or_else(|| panic!("{name} does not end"));
            executor.judge(&state).unwrap();
        }
    }
}

#[test]
fn mutants_get_the_same_verdict_on_first_ranks_and_on_all() {
    let (mut refused, mut accepted, mut rooms) = (0, 0, BTreeSet::new());
    for (name, orbit) in programs() {
        // Of a large program some hundred, of every kind.
        let all = mutants::all(&orbit.program);
        let each = all.len().div_ceil(300);
        for Mutant { slip, program } in all.into_iter().step_by(each) {
            let mutant = OrbitProgram { program, unfolding: orbit.unfolding.clone() };
            let whole = unfolded(&mutant).map(check);
            match check_orbits(mutant) {
                Ok(checked) => {
                    let whole = whole.unwrap_or_else(|| panic!("{name}: {slip:?} has no image"));
                    let whole = whole.unwrap_or_else(|violations| panic!("{name}: {slip:?} {violations}"));
                    assert_eq!(checked.window(), whole.window(), "{name}: {slip:?}");
                    accepted += 1;
                    rooms.insert(checked.window());
                }
                Err(violations) => {
                    assert!(!matches!(whole, Some(Ok(_))), "{name}: {slip:?} is right, but: {violations}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 10 * accepted.min(100) && accepted > 100, "{refused} refused, {accepted} accepted");
    assert!(rooms.len() > 1, "some need room: {rooms:?}");
}

/// What says more or less than the first ranks do is refused before anything else is looked at.
#[test]
fn other_forms_are_refused() {
    let (name, good) = programs().next().unwrap();
    type Spoil = (&'static str, fn(&mut OrbitProgram));
    let spoils: [Spoil; 5] = [
        ("steps of another rank", |it| it.program.ranks[1] = it.program.ranks[0].clone()),
        ("no first rank", |it| it.program.ranks[0] = RankProgram::default()),
        ("another sender", |it| it.program.connections[0].from = Rank(1)),
        ("in place", |it| it.program.in_place = true),
        ("two slots", |it| {
            let step = &mut it.program.ranks[0].threadblocks[0].steps[0];
            if let Instruction::Send { src, .. } = &mut step.instruction {
                src.count = 2;
            }
        }),
    ];
    for (what, spoil) in spoils {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(check_orbits(bad).is_err(), "{name}: {what}");
    }
}
