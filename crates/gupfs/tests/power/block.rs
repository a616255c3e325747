//! Blocks that say whose they are: each 64 bytes of a block name file, block and pass, so that a stale, foreign or torn piece is
//! seen and named.

/// Bytes of a block.
pub const SIZE: usize = 4096;
/// Bytes that name themselves.
const LINE: usize = 64;
const MAGIC: u64 = 0x6b63_6f6c_6273_6967;

fn line(file: u64, index: u64, pass: u32, number: u64) -> [u8; LINE] {
    let mut words = [MAGIC, file, index, u64::from(pass), number, 0, 0, 0];
    for at in 5..8 {
        let mixed = words[1] ^ (words[2] << 20) ^ (words[3] << 40) ^ (words[4] << 56);
        words[at] = stdx::prng::splitmix64(mixed ^ at as u64);
    }
    let mut bytes = [0; LINE];
    for (place, word) in bytes.chunks_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Block `index` of file `file` in its `pass`.
pub fn make(file: u64, index: u64, pass: u32) -> Vec<u8> {
    (0..(SIZE / LINE) as u64)
        .flat_map(|number| line(file, index, pass, number))
        .collect()
}

/// The pass that the block holds, 0 if it is all zero; else what is wrong.
pub fn read(bytes: &[u8], file: u64, index: u64) -> Result<u32, String> {
    assert_eq!(bytes.len(), SIZE);
    if bytes.iter().all(|b| *b == 0) {
        return Ok(0);
    }
    let mut found = None;
    for (number, part) in (0..).zip(bytes.chunks(LINE)) {
        let word =
            |at: usize| u64::from_le_bytes(part[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
        let Ok(pass) = u32::try_from(word(3)) else {
            return Err(format!("line {number} is rubbish: {part:02x?}"));
        };
        if part != line(file, index, pass, number) {
            let is_ours = word(0) == MAGIC;
            return Err(match is_ours {
                true => format!(
                    "line {number} is of file {}, block {}, pass {pass}, line {}",
                    word(1),
                    word(2),
                    word(4)
                ),
                false => format!("line {number} is rubbish: {part:02x?}"),
            });
        }
        if *found.get_or_insert(pass) != pass {
            return Err(format!(
                "torn: pass {} before line {number}, pass {pass} from there on",
                found.unwrap_or(0)
            ));
        }
    }
    Ok(found.unwrap_or(0))
}

/// Each byte is what one of `passes` has there (0: zeros).
pub fn is_mix(bytes: &[u8], file: u64, index: u64, passes: &[u32]) -> bool {
    let bytes_of = |pass: &u32| match pass {
        0 => vec![0; SIZE],
        pass => make(file, index, *pass),
    };
    let all: Vec<Vec<u8>> = passes.iter().map(bytes_of).collect();
    let mut each = bytes.iter().enumerate();
    each.all(|(at, byte)| all.iter().any(|pass| pass[at] == *byte))
}
