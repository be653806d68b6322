// The menu of the site's versions. `versions.js`, in the folder above a version's, calls
// strandlineVersions with all of them; a site that stands alone has none, and shows no menu.
"use strict";

window.strandlineVersions = (versions) => {
  const menu = document.getElementById("version-menu");
  const root = new URL(document.documentElement.dataset.content_root, document.location);
  const select = menu.querySelector("select");
  for (const version of versions) {
    select.add(new Option(version, version, false, version === menu.dataset.version));
  }
  // The same page may not exist in another version: go to its first one.
  select.addEventListener("change", () => {
    document.location = new URL(`../${select.value}/index.html`, root);
  });
  menu.hidden = versions.length < 2;
};

document.addEventListener("DOMContentLoaded", () => {
  const root = new URL(document.documentElement.dataset.content_root, document.location);
  const script = document.createElement("script");
  script.src = new URL("../versions.js", root);
  document.head.append(script);
});
