# shellcheck shell=bash
# Pinned means pinned. Enroot takes a manifest as the registry serves it and compares only the layers with their
# digests. So the job fetches what the plan pins itself, compares the bytes, chooses the platform in an index, and
# lets Enroot import that platform's manifest; afterwards only layers of that manifest may have been used.

readonly ASI_INDEX_TYPES='application/vnd.oci.image.index.v1+json application/vnd.docker.distribution.manifest.list.v2+json'
# How core/platform.py reads the names of a platform, as far as nodes have them.
readonly ASI_PLATFORM='def architecture: .architecture | strings | ascii_downcase
        | {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armv8": "arm64"}[.] // .;
    def os: .os // "" | ascii_downcase | if . == "" then "linux" else . end;
    def platform: os + "/" + architecture;'
readonly ASI_MANIFEST_TYPES='application/vnd.oci.image.manifest.v1+json application/vnd.docker.distribution.manifest.v2+json'

ASI_BASE_URL=''
ASI_LAYERS='' # file with the hex digests of config and layers

# asi::oci_architecture NAME - what an image calls the machine that `uname -m` calls NAME.
asi::oci_architecture() {
    case "$1" in
        x86_64) printf 'amd64\n' ;;
        aarch64) printf 'arm64\n' ;;
        *) printf '%s\n' "$1" ;;
    esac
}

# asi::kind FILE - `index`, `image CONFIG_DIGEST`, or `no WORDS` for what cannot be imported, by the rules of core/oci.py.
asi::kind() {
    jq -r --arg indexes "${ASI_INDEX_TYPES}" --arg manifests "${ASI_MANIFEST_TYPES}" '
        def is($types): .mediaType as $own | $own == null or ($types | split(" ") | index($own) != null);
        def image_config: . == "application/vnd.oci.image.config.v1+json"
            or . == "application/vnd.docker.container.image.v1+json";
        def image_layer:
            test("\\Aapplication/vnd[.](oci[.]image[.]layer[.](nondistributable[.])?v1|docker[.]image[.]rootfs)[.]");
        def image_layers: [.layers[]? | .mediaType // "" | tostring];
        if type != "object" then "no JSON object"
        elif .schemaVersion == 1 or has("fsLayers") then "no longer supported: Docker schema 1"
        elif .manifests != null and (.config != null or .layers != null) then "no clear kind: index and image at once"
        elif (is($indexes + " " + $manifests) | not) then "no image but an artifact"
        elif (is(if .manifests != null then $indexes else $manifests end) | not) then "no clear kind: its media type is another"
        elif .manifests != null then "index"
        elif (.config.mediaType? // "" | image_config | not) then "no image but an artifact"
        elif (image_layers | length == 0 or (map(image_layer) | all | not)) then "no image layers"
        elif (image_layers | map(endswith("+encrypted")) | any) then "no layers that Enroot can read: they are encrypted"
        else "image \(.config.digest)"
        end' "$1" 2> /dev/null || printf 'no JSON\n'
}

# asi::choose FILE ARCHITECTURE - digest of the platform's manifest in an index, by the rules of core/oci.py: the
# usual variant or the only one there is; a lone entry that states no platform.
asi::choose() {
    jq -r --arg arch "$2" --arg indexes "${ASI_INDEX_TYPES}" "${ASI_PLATFORM}"'
        def usual: {amd64: "v1", arm64: "v8"}[$arch] // "";
        def variant: .platform.variant // "" | ascii_downcase | if . == usual or "v" + . == usual then "" else . end;
        [.manifests[] | select((.annotations // {}) | has("vnd.docker.reference.type") | not)
            | select(.mediaType as $type | $indexes | split(" ") | index($type) | not)
            | select(.platform.architecture != "unknown")] as $entries
        | [$entries[] | select(.platform != null and (.platform | platform) == "linux/" + $arch)] as $fit
        | [$fit[] | select(variant == "")] as $exact
        | if ($exact | length) > 0 then $exact[0].digest
          elif ([$fit[] | variant] | unique | length) == 1 then $fit[0].digest
          elif ($entries | length) == 1 and $entries[0].platform == null then $entries[0].digest
          else empty end' "$1" 2> /dev/null || true
}

# asi::platforms FILE - what an index holds, for a message.
asi::platforms() {
    jq -r '[.manifests[].platform | select(. != null and .architecture != "unknown")
        | [.os, .architecture, .variant] | map(strings) | join("/")] | unique | join(", ")' "$1" 2> /dev/null \
        | tr -cd 'A-Za-z0-9/., _-' | head -c 300
}

# asi::manifest DIGEST FILE - fetch one index or manifest.
asi::manifest() {
    local -r types="${ASI_INDEX_TYPES} ${ASI_MANIFEST_TYPES}"
    asi::document "manifests/$1" "${types// /, }" "$1" "$2"
}

# asi::require_digest TEXT WHAT
asi::require_digest() {
    if [[ ! "$1" =~ ^sha256:[0-9a-f]{64}$ ]]; then
        asi::fail "${E_NO_IMAGE}" "$2 of ${ASI_DIGEST} is not named by a sha256 digest"
    fi
}

# asi::verify_manifest - from the pinned digest to one platform's manifest; sets ASI_INDEX_DIGEST and
# ASI_PLATFORM_DIGEST, and leaves what is known of the image for the record.
asi::verify_manifest() {
    local -r wanted="$(asi::oci_architecture "${ASI_ARCH:-$(uname -m)}")"
    local kind='' config='' scheme=https
    local document="${ASI_SCRATCH}/index.json"
    if [[ "${ASI_ALLOW_HTTP}" == yes ]]; then
        scheme=http
    fi
    # shellcheck disable=SC2034 # asi::document reads it
    ASI_BASE_URL="${scheme}://${ASI_REGISTRY}/v2/${ASI_REPOSITORY}"
    asi::use_site_settings
    rm -rf -- "${ASI_ANSWER}"
    mkdir -m 0700 -- "${ASI_ANSWER}"
    ASI_PLATFORM_DIGEST=''
    asi::manifest "${ASI_DIGEST}" "${document}"
    kind="$(asi::kind "${document}")"
    if [[ "${kind}" == index ]]; then
        ASI_INDEX_DIGEST="${ASI_DIGEST}"
        config="$(asi::choose "${document}" "${wanted}")"
        if [[ -z "${config}" ]]; then
            asi::fail "${E_ARCHITECTURE}" "the index ${ASI_DIGEST} has no image for linux/${wanted}; it holds $(asi::platforms "${document}")"
        fi
        asi::require_digest "${config}" "the image for ${wanted}"
        document="${ASI_SCRATCH}/manifest.json"
        asi::manifest "${config}" "${document}"
        ASI_PLATFORM_DIGEST="${config}"
        kind="$(asi::kind "${document}")"
    else
        ASI_PLATFORM_DIGEST="${ASI_DIGEST}"
    fi
    if [[ "${kind}" != image\ * ]]; then
        asi::fail "${E_NO_IMAGE}" "${ASI_PLATFORM_DIGEST} of ${ASI_REPOSITORY} at ${ASI_REGISTRY} is no container image: ${kind}"
    fi
    config="${kind#image }"
    asi::require_digest "${config}" 'the configuration'
    asi::document "blobs/${config}" '*/*' "${config}" "${ASI_SCRATCH}/config.json"
    rm -rf -- "${ASI_ANSWER}"
    asi::check_architecture "${wanted}"
    asi::keep_description "${document}"
    asi::log "manifest ${ASI_PLATFORM_DIGEST} verified for linux/${wanted}${ASI_INDEX_DIGEST:+ of index ${ASI_INDEX_DIGEST}}"
}

# asi::check_architecture WANTED - what the image says of itself; an index may be put together wrongly.
asi::check_architecture() {
    local found=''
    found="$(jq -r "${ASI_PLATFORM} platform" "${ASI_SCRATCH}/config.json" 2> /dev/null)" || true
    if [[ "${found}" != "linux/$1" ]]; then
        found="${found//[^A-Za-z0-9\/._-]/}"
        found="${found:0:80}"
        asi::fail "${E_ARCHITECTURE}" "the image is for ${found:-no stated platform}, asked was linux/$1"
    fi
}

# asi::keep_description MANIFEST - digests of the layers for the import, and facts for the image record, bounded.
asi::keep_description() {
    ASI_LAYERS="${ASI_SCRATCH}/layers"
    jq -r '.config.digest, .layers[].digest | ltrimstr("sha256:")' "$1" | sort -u > "${ASI_LAYERS}"
    if grep -Evq '^[0-9a-f]{64}$' "${ASI_LAYERS}"; then
        asi::fail "${E_NO_IMAGE}" "a layer of ${ASI_PLATFORM_DIGEST} is not named by a sha256 digest"
    fi
    jq -c -s '
        def text: if type == "string" then .[0:4096] else null end;
        .[0] as $manifest | .[1] as $config
        | {created: ($config.created | text), user: ($config.config.User? | text),
           labels: ([$config.config.Labels? // {} | to_entries[] | select(.value | type == "string")
               | {key: .key[0:256], value: .value[0:4096]}][0:256] | from_entries),
           volumes: ($config.config.Volumes? // {} | keys[0:64] | map(text)),
           exposed_ports: ($config.config.ExposedPorts? // {} | keys[0:64] | map(text)),
           layers: [$manifest.layers[0:256][] | {digest, size_bytes: .size, media_type: .mediaType}]}' \
        "$1" "${ASI_SCRATCH}/config.json" 2> /dev/null | head -c 262144 > "${ASI_ATTEMPT_DIR}/output/static/oci-config" || true
}

# asi::link_layers - only what the verified manifest names enters the attempt's cache.
asi::link_layers() {
    local layer=''
    while IFS= read -r layer; do
        if [[ -f "${ASI_CACHE}/${layer}" && ! -L "${ASI_CACHE}/${layer}" ]]; then
            ln -t "${ASI_ATTEMPT_DIR}/cache" -- "${ASI_CACHE}/${layer}" 2> /dev/null || true
        fi
    done < "${ASI_LAYERS}"
}

# asi::check_layers - Enroot asked the registry for the manifest again; a second answer with other content shows here.
asi::check_layers() {
    local used=''
    used="$(find "${ASI_ATTEMPT_DIR}/cache" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}' -printf '%f\n' | sort)"
    if [[ "${used}" != "$(< "${ASI_LAYERS}")" ]]; then
        asi::fail "${E_MANIFEST}" "registry ${ASI_REGISTRY} gave Enroot other layers than ${ASI_PLATFORM_DIGEST} names"
    fi
}
